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
from collections.abc import Iterator

from os_acc import exception
from os_acc.objects.accelerator_request import AcceleratorRequest
from os_acc.objects.lease import Lease, RecordedState
from os_acc.objects.published import NO_NAMES, PublishedNames
from os_acc.store import errors, journal, providers, records, regions, requests, schema
from os_acc.store.database import Database, has_foreign_log, has_valid_header
from os_acc.store.errors import StoreDamaged
from os_acc.store.journal import Event


@dataclasses.dataclass(frozen=True, slots=True)
class StoreSnapshot(RecordedState):
    """The contents of a store; empty if there is no store yet.

    :ivar damaged_files: damaged stores that were set aside.
    :ivar published_names: the names that os_acc published in Placement.
    :ivar requests: accelerator requests made from device profiles, with their
        leases.
    :ivar events: the events that were requested, in chronological order.
    """

    damaged_files: tuple[str, ...] = ()
    published_names: PublishedNames = NO_NAMES
    requests: tuple[AcceleratorRequest, ...] = ()
    events: tuple[Event, ...] = ()


def read(state_path: str, busy_timeout: float, *, events: int = 0) -> StoreSnapshot:
    """Return the current contents of the store below a state directory.

    :param busy_timeout: limit for waiting for writers, in seconds.
    :param events: number of the newest events to read as well.
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
        found = _read(database.path, time.monotonic() + busy_timeout, events)
    except schema.Damaged as error:
        raise _damaged(database.path, str(error)) from error
    except sqlite3.Error as error:
        if errors.is_damage(error) or not has_valid_header(database.path):
            raise _damaged(database.path, str(error)) from error
        raise errors.from_sqlite(error, database.path) from error
    except OSError as error:
        raise errors.from_os_error(error, database.path) from error
    return dataclasses.replace(found, damaged_files=database.damaged)


def _read(path: str, deadline: float, events: int) -> StoreSnapshot:
    while True:
        left = max(0.0, deadline - time.monotonic())
        if not has_foreign_log(path):
            try:
                return _snapshot(path, "ro", left, events)
            except sqlite3.OperationalError as error:
                # A process was killed in the middle of a transaction. Rolling back is
                # left to writers.
                if error.sqlite_errorcode != sqlite3.SQLITE_READONLY_ROLLBACK:
                    raise
        # A private copy can be rolled back.
        if (copied := _copied(path, events)) is not None:
            return copied
        if not left:
            raise exception.StateUnavailable(
                f"others were writing to {path} all the time",
                reason=exception.StateReason.BUSY,
            )


def _copied(path: str, events: int) -> StoreSnapshot | None:
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
        copy = os.path.join(directory, os.path.basename(path))
        return _snapshot(copy, "rw", 0.0, events)


def _stamp(path: str) -> tuple[int, int, int]:
    state = os.stat(path)
    return state.st_ino, state.st_size, state.st_mtime_ns


def _snapshot(path: str, mode: str, timeout: float, events: int) -> StoreSnapshot:
    uri = f"{pathlib.Path(path).as_uri()}?mode={mode}"
    with _connect(uri, timeout) as connection:
        connection.execute("BEGIN")
        schema.check_version(connection, path)
        if schema.version_of(connection) == len(schema.STEPS):
            with schema.named_as_stored(connection):
                return _contents(connection, events)
        # The store itself is upgraded by writers only.
        with _connect("file::memory:", timeout) as copy:
            connection.backup(copy)
            schema.upgrade(copy, path)
            return _contents(copy, events)


@contextlib.contextmanager
def _connect(uri: str, timeout: float) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(
        sqlite3.connect(uri, uri=True, timeout=timeout, isolation_level=None)
    ) as connection:
        # Damaged text must not make the rows around it unreadable.
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        schema.add_functions(connection)
        yield connection


def _contents(connection: sqlite3.Connection, events: int) -> StoreSnapshot:
    leases: list[Lease] = []
    claims = set(records.damaged_claims(connection))
    for row in records.select(connection):
        try:
            leases.append(records.lease_of(row))
        except schema.Damaged:
            claims.update(records.claims_of(connection, row))
    return StoreSnapshot(
        leases=tuple(leases),
        damaged_claims=tuple(sorted(claims)),
        unverified_regions=regions.read(connection),
        provider_origins=providers.read_origins(connection),
        provider_plugins=providers.read_plugins(connection),
        mdev_totals=providers.read_mdev_totals(connection),
        helper_claims=records.read_helper_claims(connection),
        published_names=providers.read_published_names(connection),
        requests=requests.with_leases(requests.select(connection), leases),
        events=journal.newest(connection, events) if events else (),
    )


def _damaged(path: str, why: str) -> StoreDamaged:
    return StoreDamaged(
        f"{path} is damaged ({why})",
        path=path,
        hint="restart nova-compute: it sets the file aside, and saves what can "
        "be read of it",
    )
