# SPDX-License-Identifier: Apache-2.0

"""Recover the readable part of a damaged store, and leases that were set aside."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from os_acc.objects.lease import Lease
from os_acc.store import errors, records, requests, schema
from os_acc.store import regions as region_rows
from os_acc.store.schema import (
    CLAIMS,
    CREATED_NAMES,
    MDEV_TOTALS,
    META,
    PROVIDER_ORIGINS,
    PROVIDER_PLUGINS,
    PROVIDERS,
    PUBLISHED_NAMES,
    REGIONS,
    Table,
)

#: Tables whose intact rows are copied as they are. Events stay in the damaged file.
_COPIED = (
    PROVIDERS,
    PROVIDER_ORIGINS,
    PROVIDER_PLUGINS,
    MDEV_TOTALS,
    PUBLISHED_NAMES,
    CREATED_NAMES,
)


@dataclasses.dataclass(frozen=True, slots=True)
class ReadableContents:
    """The readable contents of a damaged store.

    :ivar claims: all claims, also those whose digest does not match.
    :ivar tables: intact rows of each table of plain columns.
    :ivar regions_are_complete: whether no record of a region is missing.
    """

    leases: tuple[records.LeaseRow, ...] = ()
    claims: tuple[tuple[str, ...], ...] = ()
    epoch: int = 0
    tables: Mapping[Table, tuple[tuple[Any, ...], ...]] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )
    regions: tuple[region_rows.RegionRow, ...] = ()
    regions_are_complete: bool = False
    requests: tuple[tuple[str, ...], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class RecoveryResult:
    """Numbers of leases: recovered, and unreadable."""

    recovered: int = 0
    unreadable: int = 0


def read(connection: sqlite3.Connection) -> ReadableContents:
    """Read a damaged store as far as possible.

    :raises sqlite3.Error: the store cannot be read now; the error is transient.
    """
    return ReadableContents(
        leases=tuple(
            records.LeaseRow(*row)
            for row in _scan(connection, "leases", records.COLUMNS)
        ),
        claims=tuple(_texts(connection, "claims", "address, lease")),
        epoch=max((epoch for _, epoch, _ in _intact(connection, META)), default=0),
        tables=MappingProxyType(
            {table: tuple(_intact(connection, table)) for table in _COPIED}
        ),
        regions=tuple(
            region_rows.RegionRow(*row) for row in _intact(connection, REGIONS)
        ),
        regions_are_complete=_are_regions_complete(connection),
        requests=tuple(_texts(connection, "requests", requests.COLUMNS)),
    )


def write(connection: sqlite3.Connection, contents: ReadableContents) -> RecoveryResult:
    """Copy every intact lease and every remaining claim.

    A claim without an intact lease keeps its device out of use, even if the
    claim's digest does not match: it may be the only remaining record.

    :param connection: connection to a new store, in a transaction.
    """
    recovered: set[str] = set()
    unreadable, last = 0, contents.epoch
    for row in contents.leases:
        try:
            lease = records.lease_of(row)
        except schema.Damaged as error:
            unreadable += 1
            connection.execute(
                "INSERT INTO damaged_leases VALUES (?, ?, ?, ?, ?, ?)",
                (*row[1:], str(error)),
            )
            continue
        if lease.uuid not in recovered:
            recovered.add(lease.uuid)
            last = max(last, lease.epoch)
            records.insert(connection, lease)
            records.restore_claims(connection, lease)
    lost = [claim for claim in contents.claims if claim[1] not in recovered]
    CLAIMS.put(connection, lost, keep=True)
    for table, found in contents.tables.items():
        table.put(connection, found, keep=True)
    requests.copy(connection, contents.requests)
    region_rows.copy(
        connection, contents.regions, complete=contents.regions_are_complete
    )
    schema.set_epoch(connection, last)
    return RecoveryResult(len(recovered), unreadable)


def restore_leases(connection: sqlite3.Connection) -> list[Lease]:
    """Return leases to their table that were set aside and can be read.

    An older os_acc sets a lease aside if it does not know a value in its record. A
    lease is restored only if it still claims all its addresses.
    """
    restored = []
    for values in connection.execute(
        f"SELECT rowid, {records.COLUMNS} FROM damaged_leases ORDER BY rowid"
    ).fetchall():
        row = records.LeaseRow(*values)
        try:
            lease = records.lease_of(row)
        except schema.Damaged:
            continue
        claims = CLAIMS.read(connection, "lease = ?", lease.uuid)
        if {address for address, _ in claims} != set(records.addresses_of(lease)):
            continue
        # The row as it is: it may have fields of a still newer os_acc.
        connection.execute(
            f"INSERT OR IGNORE INTO leases ({records.COLUMNS}) VALUES (?, ?, ?, ?, ?)",
            row[1:],
        )
        connection.execute("DELETE FROM damaged_leases WHERE rowid = ?", (row.rowid,))
        restored.append(lease)
    return restored


def _are_regions_complete(connection: sqlite3.Connection) -> bool:
    """Return whether all records of regions are present and intact."""
    try:
        (verdict,) = connection.execute("PRAGMA integrity_check(regions)").fetchone()
        return verdict == "ok" and region_rows.are_intact(connection)
    except sqlite3.DatabaseError as error:
        if errors.is_passing(error):
            raise
    except UnicodeDecodeError:
        # See _scan().
        pass
    return False


def _intact(connection: sqlite3.Connection, table: Table) -> Iterator[tuple[Any, ...]]:
    for _, *row in _scan(connection, table.name, table.listed):
        if table.is_intact(tuple(row)):
            yield tuple(row[:-1])


def _texts(
    connection: sqlite3.Connection, table: str, columns: str
) -> Iterator[tuple[str, ...]]:
    for _, *values in _scan(connection, table, columns):
        if all(isinstance(each, str) for each in values):
            yield tuple(values)


def _scan(
    connection: sqlite3.Connection, table: str, columns: str
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table with their rowid; none if columns are missing."""
    # Keyed by all values: a damaged rowid may equal that of another row.
    found: dict[tuple[Any, ...], None] = {}
    # A scan ends at a damaged page; the rows behind it are reached from the
    # other end. Indexes are not used: they may be damaged.
    for direction in ("ASC", "DESC"):
        try:
            for row in connection.execute(
                f"SELECT rowid, {columns} FROM {table} NOT INDEXED"
                f" ORDER BY rowid {direction}"
            ):
                found[row] = None
        except sqlite3.DatabaseError as error:
            if errors.is_passing(error):
                raise
        except UnicodeDecodeError:
            # SQLite's message quotes a damaged name.
            continue
    yield from sorted(found, key=lambda row: int(row[0]))
