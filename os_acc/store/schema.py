# SPDX-License-Identifier: Apache-2.0

"""The tables of the store, their digests, and the upgrades of the schema.

A lease and an accelerator request are stored as a payload with a digest; the
plain columns beside the payload serve SQL searches. A newer os_acc of the same
schema may add fields to a payload, which an older one keeps; any other change
needs a new step in :data:`STEPS`.

All other tables but ``damaged_leases`` have plain columns and one digest per row,
of the table's name and of all values with their types. It is checked whenever the row
is read, and for every row on which a decision rests when the store is opened. The
version of the schema is recorded in the header of the file, and under a digest in the
row of the store itself.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import sqlite3
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from os_acc import exception
from os_acc.objects.epoch import LIMIT
from os_acc.store.errors import StoreReplaced

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
    """A table of plain columns, with a digest per row.

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

    def read(
        self,
        connection: sqlite3.Connection,
        condition: str = "TRUE",
        *arguments: object,
    ) -> list[tuple[Any, ...]]:
        """Return the values of rows, without their digests.

        :raises Damaged: the digest of a row does not match.
        """
        found = connection.execute(
            f"SELECT {self.listed} FROM {self.name} WHERE {condition}", arguments
        ).fetchall()
        if not all(map(self.is_intact, found)):
            raise Damaged(f"a row of {self.name} does not match its digest")
        return [row[:-1] for row in found]

    def put(
        self,
        connection: sqlite3.Connection,
        rows: Iterable[tuple[Any, ...]],
        *,
        keep: bool = False,
    ) -> int:
        """Insert or replace rows by key; return how many were written.

        :param keep: leave existing rows unchanged.
        """
        verb = "IGNORE" if keep else "REPLACE"
        marks = ", ".join("?" * (len(self.columns) + 1))
        return connection.executemany(
            f"INSERT OR {verb} INTO {self.name} ({self.listed}) VALUES ({marks})",
            [(*row, row_digest(self.name, *row)) for row in rows],
        ).rowcount


META: Final = Table("meta", ("store", "epoch", "version"))
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

#: A damaged row in one of these tables makes the whole store damaged.
_DECISIVE: Final = (
    META,
    CLAIMS,
    PROVIDERS,
    PROVIDER_ORIGINS,
    PROVIDER_PLUGINS,
    MDEV_TOTALS,
    PUBLISHED_NAMES,
    CREATED_NAMES,
    HELPER_CLAIMS,
)


def digest(payload: str) -> str:
    """Return the SHA-256 of a payload, as hexadecimal text."""
    # Text from a damaged file may contain surrogates.
    return hashlib.sha256(payload.encode("utf-8", "surrogatepass")).hexdigest()


def row_digest(*values: object) -> str:
    """Return the digest of plain values and their types; '' for other types."""
    if not all(isinstance(value, str | int) for value in values):
        return ""
    return digest(json.dumps(values))


def add_functions(connection: sqlite3.Connection) -> None:
    """Make the digest function available to the SQL statements of a connection."""
    connection.create_function("row_digest", -1, row_digest, deterministic=True)


def version_of(connection: sqlite3.Connection) -> int:
    """Return the version of the file's schema; 0: not yet a store."""
    return _pragma(connection, "user_version")


def check_version(connection: sqlite3.Connection, path: str) -> None:
    """Check that the file is a store of a version that this os_acc can serve.

    :raises Damaged: it is not a store, or its records of the version disagree.
    :raises StateUnavailable: a newer os_acc created or upgraded it.
    """
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise Damaged("it is not a store of os_acc")
    version = version_of(connection)
    if version < 1 or _contradicts_header(connection, version):
        raise Damaged(f"its header has schema version {version}, which is wrong")
    if version > len(STEPS):
        raise exception.StateUnavailable(
            f"{path} has schema version {version}; this os_acc supports versions up"
            f" to {len(STEPS)}",
            reason=exception.StateReason.TOO_NEW,
        )


def check_tables(connection: sqlite3.Connection) -> None:
    """Check that the tables are those of this version, and the digest of each row.

    :raises Damaged: tables differ from those of a new store, or a digest from its
        row.
    """
    _check_layout(connection, len(STEPS))
    for table in _DECISIVE:
        table.read(connection)


@contextlib.contextmanager
def named_as_stored(connection: sqlite3.Connection) -> Iterator[None]:
    """Report a name that the file lacks as damage of its tables.

    SQLite reports a damaged name of a table or column like a wrong statement.

    :raises Damaged: a statement failed, and the tables are not those of a store.
    """
    try:
        yield
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_ERROR:
            _check_layout(connection, len(STEPS))
        raise


def create(connection: sqlite3.Connection) -> None:
    """Create a store of the current version in an empty file, in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        _run(connection, STEPS)
        _set_version(connection)


def upgrade(connection: sqlite3.Connection, path: str) -> None:
    """Bring a store to the current version in one transaction.

    The transaction of an upgrade first verifies the version, the tables and the
    row of the store itself.

    :raises Damaged: one of them is damaged; no step has run.
    :raises StateUnavailable: a newer os_acc has upgraded the store.
    """
    if version_of(connection) == len(STEPS):
        return
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        # Another process may have upgraded the store before the transaction began.
        check_version(connection, path)
        version = version_of(connection)
        if version == len(STEPS):
            return
        _check_layout(connection, version)
        read_meta(connection)
        _run(connection, STEPS[version:])
        _set_version(connection)


def read_meta(connection: sqlite3.Connection) -> StoreMeta:
    """Return the row of the store itself.

    :raises Damaged: the row is damaged, missing or not unique.
    """
    found = META.read(connection)
    if len(found) != 1 or not 0 <= found[0][1] <= LIMIT:
        raise Damaged("its identity and epoch are missing or not unique")
    return StoreMeta(*found[0])


def check_identity(connection: sqlite3.Connection, seen: str) -> None:
    """Check that this is the store that the caller has read; '' accepts any.

    :raises StoreReplaced: it is another store.
    """
    if seen not in ("", read_meta(connection).store):
        raise StoreReplaced("the store was replaced after it had been read")


def set_epoch(connection: sqlite3.Connection, epoch: int) -> None:
    """Set the epoch counter."""
    connection.execute(
        "UPDATE meta SET epoch = ?1, digest = row_digest('meta', store, ?1, version)",
        (epoch,),
    )


def _run(connection: sqlite3.Connection, steps: Iterable[tuple[str, ...]]) -> None:
    for statement in itertools.chain.from_iterable(steps):
        connection.execute(statement)


def _set_version(connection: sqlite3.Connection) -> None:
    connection.execute(
        "UPDATE meta SET version = ?1, digest = row_digest('meta', store, epoch, ?1)",
        (len(STEPS),),
    )
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {len(STEPS)}")


def _contradicts_header(connection: sqlite3.Connection, version: int) -> bool:
    """Return whether an intact row of the store names another version."""
    try:
        found = connection.execute(f"SELECT {META.listed} FROM meta").fetchall()
    except sqlite3.OperationalError:
        # The table may have other columns in a newer schema.
        return False
    return any(META.is_intact(row) and row[2] != version for row in found)


def _check_layout(connection: sqlite3.Connection, version: int) -> None:
    """Check that the tables are those of a store of a version."""
    with contextlib.closing(sqlite3.connect(":memory:")) as new:
        new.isolation_level = None
        add_functions(new)
        _run(new, STEPS[:version])
        if _tables(connection) != _tables(new):
            raise Damaged("its tables are not those of a store")


def _tables(connection: sqlite3.Connection) -> list[tuple[object, ...]]:
    cursor = connection.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"
    )
    return cursor.fetchall()


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    return int(value)
