# SPDX-License-Identifier: Apache-2.0

"""Salvage the readable part of a damaged store into a new one."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from os_acc.store import codec, errors, meta, requests, rows
from os_acc.store import regions as region_rows
from os_acc.store.proven_tables import (
    CLAIMS,
    MADE,
    META,
    OFFERED,
    PLACES,
    PROVIDERS,
    TOLD,
    ProvenTable,
)

_LEASE = "uuid, consumer, epoch, payload, digest"
#: Tables whose rows are kept as they are. Events stay in the damaged file.
_KEPT = (PROVIDERS, TOLD, MADE, PLACES, OFFERED)


@dataclasses.dataclass(frozen=True, slots=True)
class SalvagedContents:
    """The readable contents of a damaged store.

    :ivar claims: all claims, also those whose digest does not match.
    :ivar tables: intact rows of each table of plain columns.
    :ivar regions_are_whole: whether no record of a region is missing.
    """

    leases: tuple[rows.LeaseRow, ...] = ()
    claims: tuple[tuple[str, ...], ...] = ()
    epoch: int = 0
    tables: Mapping[ProvenTable, tuple[tuple[Any, ...], ...]] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )
    regions: tuple[region_rows.RegionRow, ...] = ()
    regions_are_whole: bool = False
    requests: tuple[tuple[str, ...], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class RecoveryResult:
    """Numbers of leases: kept ones, and unreadable ones."""

    kept: int = 0
    damaged: int = 0


def read(connection: sqlite3.Connection) -> SalvagedContents:
    """Read a damaged store as far as possible.

    :raises sqlite3.Error: the store cannot be read now; the error is transient.
    """
    return SalvagedContents(
        leases=tuple(
            rows.LeaseRow(*row) for row in _scan(connection, "leases", _LEASE)
        ),
        claims=tuple(_texts(connection, "claims", "address, lease")),
        epoch=max((epoch for _, epoch, _ in _sound(connection, META)), default=0),
        tables=MappingProxyType(
            {table: tuple(_sound(connection, table)) for table in _KEPT}
        ),
        regions=tuple(
            row
            for _, *found in _scan(connection, "unknown_regions", region_rows.COLUMNS)
            if (row := region_rows.RegionRow(*found)).is_sound
        ),
        regions_are_whole=_is_whole(connection),
        requests=tuple(_texts(connection, "requests", requests.COLUMNS)),
    )


def write(connection: sqlite3.Connection, remains: SalvagedContents) -> RecoveryResult:
    """Copy every intact lease and every remaining claim.

    A claim without an intact lease keeps its device out of use, even if the
    claim's digest does not match: it may be the only remaining record.

    :param connection: connection to a new store, in a transaction.
    """
    kept: set[str] = set()
    damaged, last = 0, remains.epoch
    for row in remains.leases:
        try:
            lease = rows.lease_of(row)
        except codec.DecodeError as error:
            damaged += 1
            connection.execute(
                "INSERT INTO damaged VALUES (?, ?, ?, ?, ?, ?)",
                (*row[1:], str(error)),
            )
            continue
        if lease.uuid not in kept:
            kept.add(lease.uuid)
            last = max(last, lease.epoch)
            rows.insert(connection, lease)
            rows.restore_claims(connection, lease)
    lost = [claim for claim in remains.claims if claim[1] not in kept]
    CLAIMS.put(connection, lost, keep=True)
    for table, found in remains.tables.items():
        table.put(connection, found, keep=True)
    requests.keep(connection, remains.requests)
    region_rows.keep(connection, remains.regions, whole=remains.regions_are_whole)
    meta.set_epoch(connection, last)
    return RecoveryResult(len(kept), damaged)


def _is_whole(connection: sqlite3.Connection) -> bool:
    """Return whether all records of regions are present and intact."""
    try:
        (verdict,) = connection.execute(
            "PRAGMA integrity_check(unknown_regions)"
        ).fetchone()
        return verdict == "ok" and region_rows.is_sound(connection)
    except sqlite3.DatabaseError as error:
        if errors.is_passing(error):
            raise
    except UnicodeDecodeError:
        # See _scan().
        pass
    return False


def _sound(
    connection: sqlite3.Connection, table: ProvenTable
) -> Iterator[tuple[Any, ...]]:
    for _, *row in _scan(connection, table.name, table.listed):
        if table.is_sound(tuple(row)):
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
