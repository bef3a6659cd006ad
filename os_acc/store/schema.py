# SPDX-License-Identifier: Apache-2.0

"""The tables of the store, their digests, and the upgrades of the schema.

A lease and an accelerator request are stored as a payload; the plain columns beside the
payload serve SQL searches. A newer os_acc of the same schema may add fields to a
payload, which an older one keeps; any other change needs a new step in :data:`STEPS`.

All tables but ``damaged_leases`` have one digest per row, of the table's name and of
all values with their types. It is checked whenever the row is read, and for every row
on which a decision rests when the store is opened. The version of the schema is in the
header of the file, and under a digest in the row of the store itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from oslo_log import log

from os_acc import exception
from os_acc.objects.epoch import LIMIT
from os_acc.store import errors

LOG = log.getLogger(__name__)

# A forked child would wait for ever for a mutex of SQLite that another thread of its
# parent held: no thread forks while another one has a connection open.
_no_fork = threading.RLock()
os.register_at_fork(
    before=_no_fork.acquire,
    after_in_parent=_no_fork.release,
    after_in_child=_no_fork.release,
)

#: The file format versions in the header, and where they are; a 2 is a write-ahead
#: log (https://www.sqlite.org/fileformat2.html#file_format_version_numbers).
_NO_LOG: Final = b"\x01\x01"
_LOG: Final = slice(18, 20)

#: "osac": distinguishes a store of os_acc from any other SQLite file.
APPLICATION_ID: Final = 0x6F736163

#: Step *n* brings a store from version *n* to version *n + 1*. No step changes the
#: columns of ``meta``: its row is verified before the steps run.
STEPS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE meta (store TEXT NOT NULL, epoch INTEGER NOT NULL,"
        " version INTEGER NOT NULL, digest TEXT NOT NULL)",
        "INSERT INTO meta VALUES (lower(hex(randomblob(16))), 0, 0, '')",
        "CREATE TABLE leases ("
        " uuid TEXT NOT NULL PRIMARY KEY, consumer TEXT NOT NULL,"
        " epoch INTEGER NOT NULL, payload TEXT NOT NULL, digest TEXT NOT NULL)",
        "CREATE INDEX leases_by_consumer ON leases (consumer)",
        # The lease of a claim may be in `damaged_leases`: the device stays claimed.
        "CREATE TABLE claims (address TEXT NOT NULL PRIMARY KEY, lease TEXT NOT NULL,"
        " digest TEXT NOT NULL)",
        "CREATE INDEX claims_by_lease ON claims (lease)",
        "CREATE TABLE damaged_leases ("
        " uuid, consumer, epoch, payload, digest, reason TEXT NOT NULL)",
        "CREATE TABLE events ("
        " id INTEGER PRIMARY KEY, at INTEGER NOT NULL, operation TEXT NOT NULL,"
        " consumer TEXT NOT NULL, address TEXT NOT NULL, state TEXT NOT NULL,"
        " detail TEXT NOT NULL, digest TEXT NOT NULL)",
        # All providers ever offered, to recognize those whose device has vanished.
        "CREATE TABLE providers ("
        " uuid TEXT NOT NULL PRIMARY KEY, resource_class TEXT NOT NULL,"
        " digest TEXT NOT NULL)",
        # The function that a provider is named after. A card with a shared serial
        # number keeps its name while other cards come and go.
        "CREATE TABLE provider_origins (provider TEXT NOT NULL PRIMARY KEY,"
        " address TEXT NOT NULL, key TEXT NOT NULL, digest TEXT NOT NULL)",
        # The plugin that last offered a provider: no other plugin may offer it
        # while that one fails.
        "CREATE TABLE provider_plugins (provider TEXT NOT NULL PRIMARY KEY,"
        " plugin TEXT NOT NULL, digest TEXT NOT NULL)",
        # The units of a type of mediated devices, which others use as well.
        "CREATE TABLE mdev_totals (parent TEXT NOT NULL, type TEXT NOT NULL,"
        " total INTEGER NOT NULL, digest TEXT NOT NULL, PRIMARY KEY (parent, type))",
        # The classes and traits that os_acc assigned to its providers in Placement,
        # and the names that it created there. in_use_at: when Placement last
        # refused to delete a name because it is in use.
        "CREATE TABLE published_names (provider TEXT NOT NULL, kind TEXT NOT NULL,"
        " name TEXT NOT NULL, digest TEXT NOT NULL,"
        " PRIMARY KEY (provider, kind, name))",
        "CREATE TABLE created_names (kind TEXT NOT NULL, name TEXT NOT NULL,"
        " in_use_at INTEGER NOT NULL, digest TEXT NOT NULL,"
        " PRIMARY KEY (kind, name))",
        # Regions that were programmed, or that a guest may have written to, verified
        # since or not. image: the last one that was programmed and verified.
        "CREATE TABLE regions (key TEXT NOT NULL PRIMARY KEY,"
        " contents TEXT NOT NULL, state INTEGER NOT NULL, image TEXT NOT NULL,"
        " digest TEXT NOT NULL)",
        # Requests made from device profiles. The lease of a request has its uuid.
        "CREATE TABLE requests (uuid TEXT NOT NULL PRIMARY KEY,"
        " payload TEXT NOT NULL, digest TEXT NOT NULL)",
        # Functions that the helper claims for leases missing here: the store was
        # created after them, or is an old copy.
        "CREATE TABLE helper_claims (address TEXT NOT NULL PRIMARY KEY,"
        " lease TEXT NOT NULL, digest TEXT NOT NULL)",
    ),
)


class Damaged(Exception):
    """The file or a record in it is not valid, or does not match its digest."""


class StoreMeta(NamedTuple):
    """The row of the store itself.

    :ivar store: identity, different for each store ever created.
    :ivar epoch: the last value of the counter.
    :ivar version: version of the schema; the same as in the header of the file.
    """

    store: str
    epoch: int
    version: int


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """A table with a digest per row.

    :ivar columns: all columns but the digest, in the order of the table.
    """

    name: str
    columns: tuple[str, ...]

    @property
    def listed(self) -> str:
        """All columns, as a list for an SQL statement."""
        return ", ".join((*self.columns, "digest"))

    def is_intact(self, row: tuple[Any, ...]) -> bool:
        """Return whether the digest of a row of all columns matches."""
        *values, digest = row
        return bool(digest) and row_digest(self.name, *values) == digest

    def rows(
        self,
        connection: sqlite3.Connection,
        condition: str = "TRUE",
        *arguments: object,
    ) -> tuple[list[tuple[Any, ...]], list[int]]:
        """Return the values of the intact rows, and the numbers of the damaged rows."""
        intact, damaged = [], []
        for number, *row in connection.execute(selection(self, condition), arguments):
            if self.is_intact(tuple(row)):
                intact.append(tuple(row[:-1]))
            else:
                damaged.append(number)
        return intact, damaged

    def delete_damaged(self, connection: sqlite3.Connection) -> None:
        """Delete the damaged rows, and log their number."""
        _, damaged = self.rows(connection)
        if damaged:
            LOG.error("Deleted the damaged records of %d %s", len(damaged), self.name)
        connection.executemany(
            f"DELETE FROM {self.name} WHERE rowid = ?", [(each,) for each in damaged]
        )

    def read(
        self,
        connection: sqlite3.Connection,
        condition: str = "TRUE",
        *arguments: object,
    ) -> list[tuple[Any, ...]]:
        """Return the values of rows, without their digests.

        :raises Damaged: the digest of a row does not match.
        """
        intact, damaged = self.rows(connection, condition, *arguments)
        if damaged:
            raise Damaged(f"a row of {self.name} does not match its digest")
        return intact

    def put(
        self,
        connection: sqlite3.Connection,
        rows: Iterable[tuple[Any, ...]],
        *,
        keep: bool = False,
    ) -> int:
        """Insert or change rows by key; return how many were written.

        :param keep: leave existing rows unchanged.
        """
        return connection.executemany(
            _insertion(self, keep=keep),
            [(*row, row_digest(self.name, *row)) for row in rows],
        ).rowcount


@functools.cache
def selection(table: Table, condition: str) -> str:
    """Return the statement that reads rows of a table in order of creation."""
    return (
        f"SELECT rowid, {table.listed} FROM {table.name} WHERE {condition}"
        " ORDER BY rowid"
    )


@functools.cache
def _insertion(table: Table, *, keep: bool) -> str:
    marks = ", ".join("?" * (len(table.columns) + 1))
    new = ", ".join(f"{each} = excluded.{each}" for each in (*table.columns, "digest"))
    change = "NOTHING" if keep else f"UPDATE SET {new}"
    return (
        f"INSERT INTO {table.name} ({table.listed}) VALUES ({marks})"
        f" ON CONFLICT DO {change}"
    )


META: Final = Table("meta", ("store", "epoch", "version"))
LEASES: Final = Table("leases", ("uuid", "consumer", "epoch", "payload"))
REQUESTS: Final = Table("requests", ("uuid", "payload"))
CLAIMS: Final = Table("claims", ("address", "lease"))
PROVIDERS: Final = Table("providers", ("uuid", "resource_class"))
PROVIDER_ORIGINS: Final = Table("provider_origins", ("provider", "address", "key"))
PROVIDER_PLUGINS: Final = Table("provider_plugins", ("provider", "plugin"))
MDEV_TOTALS: Final = Table("mdev_totals", ("parent", "type", "total"))
PUBLISHED_NAMES: Final = Table("published_names", ("provider", "kind", "name"))
CREATED_NAMES: Final = Table("created_names", ("kind", "name", "in_use_at"))
HELPER_CLAIMS: Final = Table("helper_claims", ("address", "lease"))
REGIONS: Final = Table("regions", ("key", "contents", "state", "image"))
EVENTS: Final = Table(
    "events", ("id", "at", "operation", "consumer", "address", "state", "detail")
)

_PLAIN: Final = (
    *(PROVIDERS, PROVIDER_ORIGINS, PROVIDER_PLUGINS, MDEV_TOTALS),
    *(PUBLISHED_NAMES, CREATED_NAMES),
)
#: The tables whose intact rows are copied from a damaged store as they are.
COPIED: Final = (*_PLAIN, REQUESTS)
#: A damaged row in one of these tables makes the entire store damaged.
_DECISIVE: Final = (META, CLAIMS, HELPER_CLAIMS, *_PLAIN)


def row_digest(*values: object) -> str:
    """Return the digest of plain values and their types; '' for other types."""
    for value in values:
        # Also of a subclass: a caller's strings come here as they are.
        if not isinstance(value, str | int):
            return ""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


@contextlib.contextmanager
def opened(image: bytes, path: str) -> Iterator[sqlite3.Connection]:
    """Open an image in memory, or an empty one, and begin a transaction.

    :param path: the file of the image, for messages.
    :raises Damaged: SQLite finds damage.
    :raises StateUnavailable: a statement is wrong, or the host lacks something.
    """
    try:
        with _no_fork, contextlib.closing(_in_memory()) as connection:
            # Damaged text must not make the rows around it unreadable.
            connection.text_factory = functools.partial(
                str, encoding="utf-8", errors="replace"
            )
            if image:
                if image[_LOG] != _NO_LOG:
                    # An image has no log; SQLite would not open one that names a log.
                    image = image[: _LOG.start] + _NO_LOG + image[_LOG.stop :]
                connection.deserialize(image)
            connection.execute("BEGIN")
            yield connection
    except MemoryError as error:
        raise errors.from_memory(path) from error
    except UnicodeDecodeError as error:
        # SQLite's messages quote names from the file undecoded.
        raise Damaged(str(error)) from error
    except sqlite3.Error as error:
        if errors.is_damage(error):
            raise Damaged(str(error)) from error
        raise errors.from_sqlite(error, path) from error


def create(connection: sqlite3.Connection) -> None:
    """Make a store of the current version of an empty image."""
    _run(connection, STEPS)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def check(
    connection: sqlite3.Connection, path: str, *, thorough: bool = False
) -> StoreMeta:
    """Check an image, and bring it to the current version; return its own row.

    :param thorough: check every page, and each row on which a decision rests.
    :raises Damaged: it is not a store, or it is damaged.
    :raises StateUnavailable: a newer os_acc created or upgraded it.
    """
    try:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application != APPLICATION_ID:
            raise Damaged("it is not a store of os_acc")
        meta = read_meta(connection)
        if thorough:
            (verdict,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            if verdict != "ok":
                raise Damaged(str(verdict))
        tables = _tables(connection)
    except sqlite3.Error as error:
        # No version lacks what these statements name.
        if errors.is_damage(error, sqlite3.SQLITE_ERROR):
            raise Damaged(str(error)) from error
        raise
    if meta.version != version:
        raise Damaged(f"its header does not have its version {meta.version}")
    if meta.version > len(STEPS):
        raise exception.StateUnavailable(
            f"{path} has schema version {meta.version}; this os_acc supports versions"
            f" up to {len(STEPS)}",
            reason=exception.StateReason.TOO_NEW,
        )
    if tables != _layout(STEPS[: meta.version]):
        raise Damaged("its tables are not those of a store")
    if meta.version < len(STEPS):
        _run(connection, STEPS[meta.version :])
    if thorough:
        for table in _DECISIVE:
            table.read(connection)
    return meta


def read_meta(connection: sqlite3.Connection) -> StoreMeta:
    """Return the row of the store itself.

    :raises Damaged: the row is damaged, missing or not unique.
    """
    found = META.read(connection)
    if len(found) != 1 or not 0 <= found[0][1] <= LIMIT or found[0][2] < 1:
        raise Damaged("its identity and epoch are missing or not unique")
    return StoreMeta(*found[0])


def set_epoch(connection: sqlite3.Connection, epoch: int) -> None:
    """Set the epoch counter."""
    connection.execute(
        "UPDATE meta SET epoch = ?1, digest = row_digest('meta', store, ?1, version)",
        (epoch,),
    )


def _run(connection: sqlite3.Connection, steps: Iterable[tuple[str, ...]]) -> None:
    """Run the last steps of the schema, and record its version."""
    for statement in itertools.chain.from_iterable(steps):
        connection.execute(statement)
    connection.execute(
        "UPDATE meta SET version = ?1, digest = row_digest('meta', store, epoch, ?1)",
        (len(STEPS),),
    )
    connection.execute(f"PRAGMA user_version = {len(STEPS)}")


@functools.cache
def _layout(steps: tuple[tuple[str, ...], ...]) -> list[tuple[Any, ...]]:
    """Return the tables that steps make."""
    with contextlib.closing(_in_memory()) as connection:
        _run(connection, steps)
        return _tables(connection)


def _tables(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
    return connection.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"
    ).fetchall()


def _in_memory() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.create_function("row_digest", -1, row_digest, deterministic=True)
    return connection
