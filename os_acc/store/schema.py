# SPDX-License-Identifier: Apache-2.0

"""The tables of the store, and how an older store becomes a newer one.

Plain columns are what SQL searches by; the payload is the record, and its
digest proves it. A newer os_acc of the same schema may add fields to the
payload, which an older one keeps; whatever else changes needs a new step
here.
"""

from __future__ import annotations

import contextlib
import sqlite3

from os_acc.store import codec

#: "osac": tells a store of os_acc from any other SQLite file.
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
        # The lease that a claim names may be among the damaged ones: the
        # device stays claimed.
        "CREATE TABLE claims (address TEXT NOT NULL PRIMARY KEY, lease TEXT NOT NULL)",
        "CREATE INDEX claims_by_lease ON claims (lease)",
        "CREATE TABLE damaged ("
        " uuid, consumer, epoch, payload, digest, found TEXT NOT NULL)",
        "CREATE TABLE events ("
        " id INTEGER PRIMARY KEY, at INTEGER NOT NULL, operation TEXT NOT NULL,"
        " consumer TEXT NOT NULL, address TEXT NOT NULL, state TEXT NOT NULL,"
        " detail TEXT NOT NULL)",
        # All that were ever offered, so that one whose device has vanished is
        # still known for ours.
        "CREATE TABLE providers ("
        " uuid TEXT NOT NULL PRIMARY KEY, resource_class TEXT NOT NULL)",
    ),
    (
        # Regions whose programming has begun: nothing is known of what they
        # hold until it is proved.
        "CREATE TABLE unknown_regions (key TEXT NOT NULL PRIMARY KEY,"
        " image TEXT NOT NULL)",
    ),
    (
        # A row that is damaged must not name another region than it did. One
        # of before has no digest: it proves nothing.
        "ALTER TABLE unknown_regions ADD COLUMN proved INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE unknown_regions ADD COLUMN digest TEXT NOT NULL DEFAULT ''",
    ),
    (
        # What Placement was told under our name: the classes and traits of our
        # providers, among which there may be others', and the names that are of
        # our making.
        "CREATE TABLE told (provider TEXT NOT NULL, kind TEXT NOT NULL,"
        " name TEXT NOT NULL, PRIMARY KEY (provider, kind, name))",
        "CREATE TABLE made_names (kind TEXT NOT NULL, name TEXT NOT NULL,"
        " PRIMARY KEY (kind, name))",
    ),
    (
        # Requests that were made of device profiles. What such a request has is
        # the lease with its uuid.
        "CREATE TABLE requests (uuid TEXT NOT NULL PRIMARY KEY,"
        " payload TEXT NOT NULL, digest TEXT NOT NULL)",
    ),
    (
        # What providers are named after. One of a card whose serial number is not
        # its own keeps its name while others come and go.
        "CREATE TABLE places (provider TEXT NOT NULL PRIMARY KEY,"
        " address TEXT NOT NULL, key TEXT NOT NULL)",
    ),
    (
        # When Placement last refused to delete a name, because others use it.
        "ALTER TABLE made_names ADD COLUMN kept INTEGER NOT NULL DEFAULT 0",
    ),
    (
        # Which plugin has offered a provider last: no other is to offer it while
        # that one fails.
        "CREATE TABLE offered_by (provider TEXT NOT NULL PRIMARY KEY,"
        " plugin TEXT NOT NULL)",
    ),
    (
        # Every row of plain columns proves itself, and the version in the header
        # of the file is proved as well.
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
        # Functions that the privileged helper has taken for leases that are not
        # here: this store is younger than they are, or a copy of before.
        "CREATE TABLE recorded (address TEXT NOT NULL PRIMARY KEY,"
        " lease TEXT NOT NULL, digest TEXT NOT NULL)",
    ),
)

#: The first version that has the table of unknown regions, and the first of
#: which each row proves itself.
WITH_REGIONS, WITH_PROOF = 2, 3
#: The first that has what Placement was told, and the first with requests.
WITH_TOLD, WITH_REQUESTS = 4, 5
#: The first that has what providers are named after.
WITH_PLACES = 6
#: The first that knows which names others have kept from being deleted.
WITH_KEPT = 7
#: The first that knows the plugin that offered a provider.
WITH_PLUGINS = 8
#: The first with a digest in each row of plain columns.
WITH_DIGESTS = 9
#: The first that knows what the privileged helper has taken without a lease.
WITH_RECORDED = 10


def teach(connection: sqlite3.Connection) -> None:
    """Let statements on a connection call the digest of a row."""
    connection.create_function("proof", -1, codec.proof, deterministic=True)


def version_of(connection: sqlite3.Connection) -> int:
    """The version of the schema that the file has; 0: not yet a store."""
    return _pragma(connection, "user_version")


def is_store(connection: sqlite3.Connection) -> bool:
    """Whether this os_acc, or another version of it, made the file."""
    return _pragma(connection, "application_id") == APPLICATION_ID


def is_whole(connection: sqlite3.Connection) -> bool:
    """Whether the tables are those that a new store of this version has."""
    with contextlib.closing(sqlite3.connect(":memory:")) as new:
        new.isolation_level = None
        teach(new)
        migrate(new)
        return _tables(connection) == _tables(new)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring a store, or an empty file, to this version, or change nothing."""
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
