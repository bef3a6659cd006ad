# SPDX-License-Identifier: Apache-2.0

"""What can still be read of a damaged store goes into the new one."""

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
#: Tables whose rows are kept as they are. Events go with the file set aside.
_KEPT = (PROVIDERS, TOLD, MADE, PLACES, OFFERED)


@dataclasses.dataclass(frozen=True, slots=True)
class SalvagedContents:
    """What a damaged store still says; nothing where it says nothing.

    :ivar claims: also those that do not prove themselves.
    :ivar tables: rows that prove themselves, of each table of plain columns.
    :ivar regions_are_whole: whether this is all that it said of regions.
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
    """How many leases were kept, and how many were there but unreadable."""

    kept: int = 0
    damaged: int = 0


def read(connection: sqlite3.Connection) -> SalvagedContents:
    """Read a damaged store as far as it can be read.

    :raises sqlite3.Error: it cannot be read now, for a reason that passes.
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
    """Copy every lease that proves itself, and every claim that is left.

    A claim whose lease is not among them keeps its device out of use, also where
    it does not prove itself: what it was may be known of it alone.

    :param connection: a new store, in a transaction.
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
    """Whether nothing is missing of what is recorded of regions."""
    try:
        (verdict,) = connection.execute(
            "PRAGMA integrity_check(unknown_regions)"
        ).fetchone()
        return verdict == "ok" and region_rows.is_sound(connection)
    except sqlite3.DatabaseError as error:
        if errors.is_passing(error):
            raise
    except UnicodeDecodeError:
        # As in _scan().
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
    """The rows of a table with their rowid, in its order; none if it is another."""
    # By all that they say: a damaged rowid may be that of another row.
    found: dict[tuple[Any, ...], None] = {}
    # A damaged page ends a scan; what lies behind it is reached from the
    # other end. An index may lie, so none is asked.
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
