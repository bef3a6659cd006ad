# SPDX-License-Identifier: Apache-2.0

"""Read the store without side effects.

Opening a :class:`os_acc.store.leases.Store` creates missing files, creates lock
files and repairs damage. Reading a snapshot does none of this.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Mapping
from types import MappingProxyType

from os_acc import exception
from os_acc.objects.accelerator_request import AcceleratorRequest
from os_acc.objects.lease import Lease, RecordedState
from os_acc.objects.naming import ProviderOrigin
from os_acc.objects.pci import PciAddress
from os_acc.objects.published import NOTHING, PublishedNames
from os_acc.objects.region import NO_DOUBTS, UnverifiedRegions
from os_acc.store import codec, errors, meta, providers, regions, requests, rows, schema
from os_acc.store.database import (
    Database,
    StoreDamaged,
    has_sound_header,
    has_strange_log,
)


@dataclasses.dataclass(frozen=True, slots=True)
class StoreSnapshot:
    """The contents of a store; empty if there is no store yet.

    :ivar damaged_claims: functions of leases that cannot be read.
    :ivar damaged_files: damaged stores that were set aside.
    :ivar told: the names that os_acc published in Placement.
    :ivar requests: accelerator requests made from device profiles, with their
        leases.
    :ivar places: origins from which the names of providers derive, by uuid.
    :ivar plugins: the plugin that last offered each provider, by uuid.
    :ivar claimed: functions that the helper claims without a lease here, with the
        uuid of the lease.
    """

    leases: tuple[Lease, ...] = ()
    damaged_claims: tuple[PciAddress, ...] = ()
    damaged_files: tuple[str, ...] = ()
    unknown_regions: UnverifiedRegions = NO_DOUBTS
    told: PublishedNames = NOTHING
    requests: tuple[AcceleratorRequest, ...] = ()
    places: Mapping[str, ProviderOrigin] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )
    plugins: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )
    claimed: Mapping[PciAddress, str] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )

    @property
    def standing(self) -> RecordedState:
        """The same state as :meth:`.leases.Store.standing` returns it."""
        return RecordedState(
            self.leases,
            self.damaged_claims,
            self.unknown_regions,
            self.places,
            self.plugins,
            claimed=self.claimed,
        )


def read(state_path: str, busy_timeout: float) -> StoreSnapshot:
    """Return the current contents of the store below a state directory.

    :param busy_timeout: limit for waiting for writers, in seconds.
    :raises StoreDamaged: the store is damaged; it is left in place.
    :raises StateUnavailable: the store cannot be read.
    """
    database = Database(state_path, busy_timeout)
    try:
        os.stat(database.path)
    except FileNotFoundError:
        return StoreSnapshot(damaged_files=database.damaged)
    except OSError as error:
        raise errors.from_os_error(error, database.path) from error
    try:
        found = _read(database.path, time.monotonic() + busy_timeout)
    except codec.DecodeError as error:
        raise _damaged(database.path, str(error)) from error
    except sqlite3.Error as error:
        if errors.is_damage(error) or not has_sound_header(database.path):
            raise _damaged(database.path, str(error)) from error
        raise errors.from_sqlite(error, database.path) from error
    except OSError as error:
        raise errors.from_os_error(error, database.path) from error
    return dataclasses.replace(found, damaged_files=database.damaged)


def _read(path: str, deadline: float) -> StoreSnapshot:
    while True:
        left = max(0.0, deadline - time.monotonic())
        if not has_strange_log(path):
            try:
                return _recorded(path, "ro", left)
            except sqlite3.OperationalError as error:
                # A process was killed in the middle of a transaction. Rolling back is
                # left to writers.
                if error.sqlite_errorcode != sqlite3.SQLITE_READONLY_ROLLBACK:
                    raise
        # A private copy can be rolled back.
        if (copied := _copied(path)) is not None:
            return copied
        if not left:
            raise exception.StateUnavailable(
                f"others were writing to {path} all the time",
                reason=exception.StateReason.BUSY,
            )


def _copied(path: str) -> StoreSnapshot | None:
    """Return the contents of a copy; None if it was written to meanwhile."""
    files = [each for each in (path, f"{path}-journal") if os.path.exists(each)]
    with tempfile.TemporaryDirectory(prefix="os-acc-") as directory:
        copies = [os.path.join(directory, os.path.basename(each)) for each in files]
        try:
            before = [_stamp(each) for each in files]
            for file, copy in zip(files, copies, strict=True):
                shutil.copyfile(file, copy)
            if before != [_stamp(each) for each in files]:
                return None
        except FileNotFoundError:
            return None
        return _recorded(os.path.join(directory, os.path.basename(path)), "rw", 0.0)


def _stamp(path: str) -> tuple[int, int, int]:
    state = os.stat(path)
    return state.st_ino, state.st_size, state.st_mtime_ns


def _recorded(path: str, mode: str, timeout: float) -> StoreSnapshot:
    with contextlib.closing(
        sqlite3.connect(
            f"{pathlib.Path(path).as_uri()}?mode={mode}",
            uri=True,
            timeout=timeout,
            isolation_level=None,
        )
    ) as connection:
        # Damaged text must not make the rows around it unreadable.
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        connection.execute("BEGIN")
        if not schema.is_store(connection):
            raise _damaged(path, "it is not a store of os_acc")
        if meta.contradicts_header(connection):
            raise _damaged(path, "its version is not the one that is recorded")
        if schema.version_of(connection) > len(schema.STEPS):
            raise exception.StateUnavailable(
                f"{path} was made by a newer os_acc",
                reason=exception.StateReason.TOO_NEW,
            )
        leases: list[Lease] = []
        claims = set(rows.orphans(connection))
        for row in rows.select(connection):
            try:
                leases.append(rows.lease_of(row))
            except codec.DecodeError:
                claims.update(rows.claims_of(connection, row))
        return StoreSnapshot(
            tuple(leases),
            tuple(sorted(claims)),
            unknown_regions=regions.read(connection),
            told=providers.read_published(connection),
            requests=requests.joined(requests.select(connection), leases),
            places=providers.read_origins(connection),
            plugins=providers.read_plugins(connection),
            claimed=rows.recorded(connection),
        )


def _damaged(path: str, why: str) -> StoreDamaged:
    return StoreDamaged(
        f"{path} is damaged ({why})",
        path=path,
        hint="restart nova-compute: it sets the file aside, and saves what can "
        "be read of it",
    )
