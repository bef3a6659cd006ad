# SPDX-License-Identifier: Apache-2.0

"""The SQLite file: opened for one transaction at a time, then closed.

Every transaction of every thread and process runs under one lock of os_acc,
and each opens its own connection. No connection outlives a transaction: none
is carried across a fork (https://www.sqlite.org/howtocorrupt.html, section
2.6), and none keeps writing into a file that another process has set aside.
Since readers and writers never overlap, a write-ahead log would gain nothing.
With a rollback journal a committed row is in the file itself, whereas a damaged
write-ahead log loses committed rows silently. The journal file persists and its
header is overwritten at each commit: creating and removing a file each time
takes twice as long, because the file system's own journal then has to reach the
disk as well (https://www.sqlite.org/pragma.html#pragma_journal_mode).
"""

from __future__ import annotations

import contextlib
import datetime
import glob
import math
import os
import pathlib
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence

from oslo_log import log

from os_acc import deadlines, exception
from os_acc.store import errors, recovery, schema, small_files
from os_acc.store.errors import StoreDamaged
from os_acc.store.locks import Locks

LOG = log.getLogger(__name__)

_FILE = "os_acc.sqlite"
_LOCK = "9-store"
#: Suffixes of SQLite's companion files; meaningless beside another database.
_LOG = ("-wal", "-shm")
_COMPANIONS = ("-journal", *_LOG)
#: Offset of the file format versions in the header, and the version for a
#: rollback journal
#: (https://www.sqlite.org/fileformat2.html#file_format_version_numbers).
_MODE_AT, _ROLLBACK = 18, b"\x01"
#: Valid read and write versions. Another tool may have left a write-ahead log.
_MODES = (b"\x01\x01", b"\x02\x02")
#: Schema format and text encoding, and their offsets in the header.
_FORMAT, _FORMAT_AT = (4).to_bytes(4, "big"), 44
_UTF8, _UTF8_AT = (1).to_bytes(4, "big"), 56

# SQLite keeps track of its POSIX locks in process memory. A forked child
# inherits that memory without the locks, so no thread may fork while another
# one has a connection open.
_no_fork = threading.RLock()
os.register_at_fork(
    before=_no_fork.acquire,
    after_in_parent=_no_fork.release,
    after_in_child=_no_fork.release,
)


def owner_of(state_path: str) -> tuple[int, int]:
    """Return the user and group id of the owner of the state directory.

    :raises StateUnavailable: the directory does not exist.
    """
    try:
        state = os.stat(state_path)
    except OSError as error:
        raise errors.from_os_error(error, state_path) from error
    return state.st_uid, state.st_gid


def has_foreign_log(path: str) -> bool:
    """Return whether a write-ahead log of another copy lies beside the store.

    SQLite would replay the log in each journal mode that the store's header can
    name; its contents are obsolete.
    """
    if not os.path.exists(f"{path}-wal"):
        return False
    try:
        with open(path, "rb") as file:
            header = file.read(_MODE_AT + 1)
    except OSError:
        # The next open reports the error.
        return False
    return header[_MODE_AT:] == _ROLLBACK


def has_valid_header(path: str) -> bool:
    """Return whether the fixed header fields have the values of a store.

    SQLite does not report wrong values as damage: it takes the file for a
    read-only one, or for that of a newer SQLite.
    """
    try:
        with open(path, "rb") as file:
            header = file.read(_UTF8_AT + 4)
    except OSError:
        # The next open reports the error.
        return True
    return (
        header[_MODE_AT : _MODE_AT + 2] in _MODES
        and header[_FORMAT_AT : _FORMAT_AT + 4] == _FORMAT
        and header[_UTF8_AT:] == _UTF8
    )


class Database:
    """The store's file below one state directory.

    :param busy_timeout: limit for waiting for other threads and processes, in
        seconds.
    """

    def __init__(self, state_path: str, busy_timeout: float) -> None:
        self._directory = os.path.abspath(state_path)
        self._busy_timeout = busy_timeout
        self._locks = Locks.below(self._directory)
        # Identity of the store; a change means that leases may have been lost.
        self._identity: str | None = None

    @property
    def path(self) -> str:
        return os.path.join(self._directory, _FILE)

    @property
    def damaged(self) -> tuple[str, ...]:
        """Paths of damaged files that were set aside and not removed yet."""
        found = set(glob.glob(f"{glob.escape(self.path)}.damaged-*"))
        beside = {file + suffix for file in found for suffix in _COMPANIONS}
        return tuple(sorted(found - beside))

    @contextlib.contextmanager
    def transaction(
        self, *, thorough: bool = False, deadline: float = math.inf
    ) -> Iterator[sqlite3.Connection]:
        """Run one exclusive transaction; commit unless an exception is raised.

        :param thorough: read and check the whole file first.
        :param deadline: deadline of the enclosing operation.
        :raises StateUnavailable: BUSY: the store stayed locked longer than the
            timeout. FULL: no space is left. TOO_NEW: a newer os_acc created the
            store. Otherwise the directory or file cannot be used.
        :raises StoreDamaged: the store was damaged, and has been replaced.
        """
        deadline = deadlines.for_record(deadline, self._busy_timeout)
        with self._alone(deadline):
            try:
                if not os.path.exists(self.path):
                    self._create(deadline)
                self._set_log_aside()
                with _connect(self.path, deadline) as connection:
                    self._check(connection, thorough=thorough)
                    connection.execute("BEGIN IMMEDIATE")
                    with schema.named_as_stored(connection), connection:
                        self._identify(connection)
                        yield connection
            except MemoryError as error:
                raise errors.from_memory(self.path) from error
            except sqlite3.Error as error:
                if not errors.is_damage(error) and has_valid_header(self.path):
                    raise errors.from_sqlite(error, self.path) from error
                raise self._replace(str(error), deadline) from error
            # SQLite's messages quote names from the file undecoded.
            except (schema.Damaged, UnicodeDecodeError) as error:
                raise self._replace(str(error), deadline) from error

    @contextlib.contextmanager
    def _alone(self, deadline: float) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            try:
                os.makedirs(self._directory, mode=0o750, exist_ok=True)
                stack.enter_context(self._locks.hold((_LOCK,), deadline))
            except OSError as error:
                raise errors.from_os_error(error, self._directory) from error
            except exception.LockTimeout as error:
                raise exception.StateUnavailable(
                    f"another process is using {self.path}",
                    reason=exception.StateReason.BUSY,
                ) from error
            yield

    def _check(self, connection: sqlite3.Connection, *, thorough: bool) -> None:
        schema.check_version(connection, self.path)
        if thorough:
            (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            if verdict != "ok":
                raise schema.Damaged(str(verdict))
        schema.upgrade(connection, self.path)
        if thorough:
            schema.check_tables(connection)

    def _identify(self, connection: sqlite3.Connection) -> None:
        previous, self._identity = self._identity, schema.read_meta(connection).store
        if previous not in (None, self._identity):
            raise StoreDamaged(
                f"{self.path} has been replaced by another process",
                path=self.damaged[-1] if self.damaged else "",
            )

    def _create(self, deadline: float) -> None:
        """Create an empty store where none exists."""
        lost = any(os.path.exists(self.path + suffix) for suffix in _COMPANIONS)
        if lost:
            aside = self._move_companions()
            LOG.error(
                "%s is missing, but SQLite's companion files are left (now %s-*);"
                " leases are lost, devices in an unknown state are not offered",
                self.path,
                aside,
            )
        try:
            fresh, _ = self._build(
                deadline, recovery.ReadableContents(regions_are_complete=not lost)
            )
            os.replace(fresh, self.path)
            small_files.sync_directory(self._directory)
        except OSError as error:
            raise errors.from_os_error(error, self.path) from error

    def _set_log_aside(self) -> None:
        if not has_foreign_log(self.path):
            return
        try:
            aside = self._move_companions(suffixes=_LOG)
        except OSError as error:
            raise errors.from_os_error(error, self.path) from error
        LOG.error(
            "A foreign write-ahead log lay beside %s; it was moved to %s-wal",
            self.path,
            aside,
        )

    def _replace(self, why: str, deadline: float) -> StoreDamaged:
        """Set the file aside and atomically put a new store in its place."""
        try:
            fresh, result = self._build(deadline, self._readable(deadline))
            aside = self._aside()
            os.link(self.path, aside)
            self._move_companions(aside)
            os.replace(fresh, self.path)
            small_files.sync_directory(self._directory)
        except sqlite3.Error as error:
            raise errors.from_sqlite(error, self.path) from error
        except OSError as error:
            raise errors.from_os_error(error, self.path) from error
        self._identity = None
        damage = StoreDamaged(
            f"{self.path} was damaged ({why}) and is now {aside};"
            f" {result.recovered} leases were recovered,"
            f" {result.unreadable} could not be read",
            path=aside,
        )
        LOG.error("%s", damage)
        return damage

    def _build(
        self, deadline: float, contents: recovery.ReadableContents
    ) -> tuple[str, recovery.RecoveryResult]:
        """Build a complete store under another name, to be renamed atomically."""
        fresh = f"{self.path}.new"
        _remove(fresh, "", *_COMPANIONS)
        os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o640))
        with _connect(fresh, deadline) as connection:
            schema.create(connection)
            connection.execute("BEGIN IMMEDIATE")
            with connection:
                result = recovery.write(connection, contents)
        _remove(fresh, *_COMPANIONS)
        return fresh, result

    def _readable(self, deadline: float) -> recovery.ReadableContents:
        try:
            with _connect(self.path, deadline, trusting=False) as connection:
                return recovery.read(connection)
        except sqlite3.DatabaseError as error:
            if errors.is_passing(error):
                raise
        except UnicodeDecodeError:
            LOG.debug("The table names of the damaged store are unreadable.")
        return recovery.ReadableContents()

    def _aside(self) -> str:
        now = datetime.datetime.now(datetime.UTC)
        return f"{self.path}.damaged-{now:%Y%m%dT%H%M%S.%fZ}"

    def _move_companions(
        self, aside: str | None = None, suffixes: Sequence[str] = _COMPANIONS
    ) -> str:
        aside = aside or self._aside()
        for suffix in suffixes:
            with contextlib.suppress(FileNotFoundError):
                os.rename(self.path + suffix, aside + suffix)
        return aside


@contextlib.contextmanager
def _connect(
    path: str, deadline: float, *, trusting: bool = True
) -> Iterator[sqlite3.Connection]:
    with _no_fork:
        connection = sqlite3.connect(
            f"{pathlib.Path(path).as_uri()}?mode=rw",
            uri=True,
            timeout=max(0.0, deadline - time.monotonic()),
            isolation_level=None,
        )
        with contextlib.closing(connection):
            if not trusting:
                # Limits a wrong name in the schema to one table or index.
                connection.execute("PRAGMA writable_schema = ON")
            # Damaged text must not make the rows around it unreadable.
            connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
            connection.execute("PRAGMA journal_mode = PERSIST")
            connection.execute("PRAGMA synchronous = FULL")
            schema.add_functions(connection)
            yield connection


def _remove(path: str, *suffixes: str) -> None:
    for suffix in suffixes:
        pathlib.Path(path + suffix).unlink(missing_ok=True)
