# SPDX-License-Identifier: Apache-2.0

"""The file of the store: an SQLite image that each commit replaces.

A transaction runs under one lock of os_acc. It reads the file, opens the image in
memory, checks it, and writes the changed image to a new file, which is synced and
renamed (fsync(2), rename(2)). The file is therefore that of before or that of
after the commit at each moment, after a loss of power as well, and no journal,
connection or lock of SQLite outlives a transaction: none is carried across a fork, and
none keeps writing into a file that another process has set aside. A commit waits
for the disk twice; SQLite's rollback journal needs five syncs for the same promise.
"""

from __future__ import annotations

import contextlib
import datetime
import glob
import math
import os
import sqlite3
from collections.abc import Iterator

from oslo_log import log

from os_acc import deadlines, exception
from os_acc.store import damage, errors, schema, state_files
from os_acc.store.errors import StoreDamaged
from os_acc.store.locks import Locks

LOG = log.getLogger(__name__)

_FILE = "os_acc.sqlite"
_LOCK = "9-store"


def owner_of(state_path: str) -> tuple[int, int]:
    """Return the user and group id of the owner of the state directory.

    :raises StateUnavailable: the directory does not exist.
    """
    try:
        state = os.stat(state_path)
    except OSError as error:
        raise errors.from_os_error(error, state_path) from error
    return state.st_uid, state.st_gid


class Database:
    """The store's file below one state directory.

    :param busy_timeout: limit for waiting for other threads and processes, in
        seconds.
    """

    def __init__(self, state_path: str, busy_timeout: float = 0.0) -> None:
        self._directory = os.path.abspath(state_path)
        self.path = os.path.join(self._directory, _FILE)
        self._busy_timeout = busy_timeout
        self._locks = Locks(self._directory)
        # Identity of the store; a change means that leases may have been lost.
        self.identity: str | None = None

    @property
    def damaged(self) -> tuple[str, ...]:
        """Paths of damaged files that were set aside and not removed yet."""
        return tuple(sorted(glob.glob(f"{glob.escape(self.path)}.damaged-*")))

    def read(self) -> bytes | None:
        """Return the image; None if there is no store.

        :raises StateUnavailable: the file cannot be read.
        """
        try:
            with open(self.path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None
        except MemoryError as error:
            raise errors.from_memory(self.path) from error
        except OSError as error:
            raise errors.from_os_error(error, self.path) from error

    @contextlib.contextmanager
    def transaction(
        self, deadline: float = math.inf, *, thorough: bool = False
    ) -> Iterator[sqlite3.Connection]:
        """Run one exclusive transaction; commit unless an exception is raised.

        :param deadline: deadline of the enclosing operation.
        :param thorough: check every page and every row first.
        :raises StateUnavailable: BUSY: the store stayed locked longer than the
            timeout. FULL: no space is left. TOO_NEW: a newer os_acc created the
            store. Otherwise the directory or file cannot be used.
        :raises StoreDamaged: the store was damaged, and has been replaced.
        """
        until = deadlines.for_record(deadline, self._busy_timeout)
        with contextlib.ExitStack() as held:
            lost = self._lock(held, until)
            image = self.read()
            if image is None:
                image = self._create(lost=lost)
            try:
                with schema.opened(image, self.path) as connection:
                    meta = schema.check(connection, self.path, thorough=thorough)
                    self._identify(meta.store)
                    yield connection
                    connection.execute("COMMIT")
                    if connection.total_changes:
                        self._write(connection.serialize())
            except schema.Damaged as error:
                raise self._replace(image, str(error)) from error

    def _lock(self, held: contextlib.ExitStack, deadline: float) -> bool:
        """Enter the lock; return whether it existed, and so did a store."""
        lock = os.path.join(self._directory, "locks", _LOCK)
        try:
            if not (existed := os.path.exists(lock)):
                os.makedirs(self._directory, mode=0o750, exist_ok=True)
            held.enter_context(self._locks.hold((_LOCK,), deadline))
        except OSError as error:
            raise errors.from_os_error(error, self._directory) from error
        except exception.LockTimeout as error:
            raise exception.StateUnavailable(
                f"another process is using {self.path}",
                reason=exception.StateReason.BUSY,
            ) from error
        return existed

    def _identify(self, store: str) -> None:
        previous, self.identity = self.identity, store
        if previous not in (None, store):
            raise StoreDamaged(
                f"{self.path} has been replaced by another process",
                path=self.damaged[-1] if self.damaged else "",
            )

    def _create(self, *, lost: bool) -> bytes:
        """Create an empty store where none exists; return its image."""
        if lost:
            LOG.error(
                "%s is missing; leases are lost, devices in an unknown state are not"
                " offered",
                self.path,
            )
        image, *_ = damage.rebuild(b"", self.path, is_new=not lost)
        self._write(image)
        return image

    def _replace(self, image: bytes, why: str) -> StoreDamaged:
        """Set the file aside and atomically put a new store in its place."""
        fresh, recovered, unreadable = damage.rebuild(image, self.path)
        try:
            aside = self._set_aside()
        except OSError as error:
            raise errors.from_os_error(error, self.path) from error
        self._write(fresh)
        self.identity = None
        replaced = StoreDamaged(
            f"{self.path} was damaged ({why}) and is now {aside};"
            f" {recovered} leases were recovered, {unreadable} could not be read",
            path=aside,
        )
        LOG.error("%s", replaced)
        return replaced

    def _set_aside(self) -> str:
        """Give the file a second name, unless an earlier attempt has; return it."""
        for name in self.damaged:
            if os.path.samefile(name, self.path):
                return name
        now = datetime.datetime.now(datetime.UTC)
        name = f"{self.path}.damaged-{now:%Y%m%dT%H%M%S.%fZ}"
        os.link(self.path, name)
        state_files.sync_directory(self._directory)
        return name

    def _write(self, image: bytes) -> None:
        try:
            state_files.replace(self.path, image, durable=True, mode=0o640)
        except OSError as error:
            raise errors.from_os_error(error, self.path) from error
