# SPDX-License-Identifier: Apache-2.0

"""The tables of the store, and the migrations from older versions.

Plain columns serve SQL searches; the payload is the record, and its digest
verifies it. A newer os_acc of the same schema may add fields to the payload,
which an older one keeps; any other change needs a new step here.
"""

from __future__ import annotations

import contextlib
import sqlite3

from os_acc.store import codec

#: "osac": distinguishes a store of os_acc from any other SQLite file.
APPLICATION_ID = 0x6F736163


def _proved(table: str, columns: str) -> tuple[str, str]:
    return (
        f"ALTER TABLE {table} ADD COLUMN digest TEXT NOT NULL DEFAULT ''",
        f"UPDATE {table} SET digest = proof('{table}', {columns})",
    )


#: Step *n* brings a store from version *n* to version *n + 1*.
STEPS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE meta (store TEXT NOT NULL, epoch INTEGER NOT NULL)",
        "INSERT INTO meta VALUES (lower(hex(randomblob(16))), 0)",
        "CREATE TABLE leases ("
        " uuid TEXT NOT NULL PRIMARY KEY, consumer TEXT NOT NULL,"
        " epoch INTEGER NOT NULL, payload TEXT NOT NULL, digest TEXT NOT NULL)",
        "CREATE INDEX leases_by_consumer ON leases (consumer)",
        # The lease of a claim may be in `damaged`: the device stays claimed.
        "CREATE TABLE claims (address TEXT NOT NULL PRIMARY KEY, lease TEXT NOT NULL)",
        "CREATE INDEX claims_by_lease ON claims (lease)",
        "CREATE TABLE damaged ("
        " uuid, consumer, epoch, payload, digest, found TEXT NOT NULL)",
        "CREATE TABLE events ("
        " id INTEGER PRIMARY KEY, at INTEGER NOT NULL, operation TEXT NOT NULL,"
        " consumer TEXT NOT NULL, address TEXT NOT NULL, state TEXT NOT NULL,"
        " detail TEXT NOT NULL)",
        # All providers ever offered, to recognize those whose device has vanished.
        "CREATE TABLE providers ("
        " uuid TEXT NOT NULL PRIMARY KEY, resource_class TEXT NOT NULL)",
    ),
    (
        # Regions whose programming has begun: unverified until proved.
        "CREATE TABLE unknown_regions (key TEXT NOT NULL PRIMARY KEY,"
        " image TEXT NOT NULL)",
    ),
    (
        # The digest detects a damaged key. Rows of the previous version have no
        # digest and prove nothing.
        "ALTER TABLE unknown_regions ADD COLUMN proved INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE unknown_regions ADD COLUMN digest TEXT NOT NULL DEFAULT ''",
    ),
    (
        # Names published in Placement: the classes and traits of our providers,
        # foreign ones included, and the names that os_acc created.
        "CREATE TABLE told (provider TEXT NOT NULL, kind TEXT NOT NULL,"
        " name TEXT NOT NULL, PRIMARY KEY (provider, kind, name))",
        "CREATE TABLE made_names (kind TEXT NOT NULL, name TEXT NOT NULL,"
        " PRIMARY KEY (kind, name))",
    ),
    (
        # Requests made from device profiles. The lease of a request has its uuid.
        "CREATE TABLE requests (uuid TEXT NOT NULL PRIMARY KEY,"
        " payload TEXT NOT NULL, digest TEXT NOT NULL)",
    ),
    (
        # Origins of provider names. A card with a shared serial number keeps its
        # name while other cards come and go.
        "CREATE TABLE places (provider TEXT NOT NULL PRIMARY KEY,"
        " address TEXT NOT NULL, key TEXT NOT NULL)",
    ),
    (
        # The last time at which Placement refused to delete a name in use.
        "ALTER TABLE made_names ADD COLUMN kept INTEGER NOT NULL DEFAULT 0",
    ),
    (
        # The plugin that last offered a provider: no other plugin may offer it
        # while that one fails.
        "CREATE TABLE offered_by (provider TEXT NOT NULL PRIMARY KEY,"
        " plugin TEXT NOT NULL)",
    ),
    (
        # Adds a digest to every row of plain columns, and records the version from
        # the header of the file under a digest.
        "ALTER TABLE meta ADD COLUMN version INTEGER NOT NULL DEFAULT 0",
        *_proved("meta", "store, epoch, version"),
        *_proved("claims", "address, lease"),
        *_proved("providers", "uuid, resource_class"),
        *_proved("events", "id, at, operation, consumer, address, state, detail"),
        *_proved("told", "provider, kind, name"),
        *_proved("made_names", "kind, name, kept"),
        *_proved("places", "provider, address, key"),
        *_proved("offered_by", "provider, plugin"),
    ),
    (
        # Functions that the helper claims for leases missing here: the store was
        # created after them, or is an old copy.
        "CREATE TABLE recorded (address TEXT NOT NULL PRIMARY KEY,"
        " lease TEXT NOT NULL, digest TEXT NOT NULL)",
    ),
)

#: The first version with unknown regions, and the first with their digests.
WITH_REGIONS, WITH_PROOF = 2, 3
#: The first with published names, and the first with requests.
WITH_TOLD, WITH_REQUESTS = 4, 5
#: The first with origins of provider names.
WITH_PLACES = 6
#: The first that records refused deletions of names.
WITH_KEPT = 7
#: The first that records the plugin of a provider.
WITH_PLUGINS = 8
#: The first with a digest in each row of plain columns.
WITH_DIGESTS = 9
#: The first that records the helper's claims without a lease.
WITH_RECORDED = 10


def teach(connection: sqlite3.Connection) -> None:
    """Register the digest function for SQL statements on a connection."""
    connection.create_function("proof", -1, codec.proof, deterministic=True)


def version_of(connection: sqlite3.Connection) -> int:
    """Return the version of the file's schema; 0: not yet a store."""
    return _pragma(connection, "user_version")


def is_store(connection: sqlite3.Connection) -> bool:
    """Return whether some version of os_acc created the file."""
    return _pragma(connection, "application_id") == APPLICATION_ID


def is_whole(connection: sqlite3.Connection) -> bool:
    """Return whether the tables equal those of a new store of this version."""
    with contextlib.closing(sqlite3.connect(":memory:")) as new:
        new.isolation_level = None
        teach(new)
        migrate(new)
        return _tables(connection) == _tables(new)


def migrate(connection: sqlite3.Connection) -> None:
    """Migrate a store or an empty file to the current version, or do nothing."""
    version = version_of(connection)
    if version >= len(STEPS):
        return
    connection.execute("BEGIN IMMEDIATE")
    with connection:
        for step in STEPS[version:]:
            for statement in step:
                connection.execute(statement)
        connection.execute(
            "UPDATE meta SET version = ?1, digest = proof('meta', store, epoch, ?1)",
            (len(STEPS),),
        )
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {len(STEPS)}")


def _tables(connection: sqlite3.Connection) -> list[tuple[object, ...]]:
    cursor = connection.execute(
        "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name"
    )
    return cursor.fetchall()


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    (value,) = connection.execute(f"PRAGMA {name}").fetchone()
    return int(value)
