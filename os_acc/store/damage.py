# SPDX-License-Identifier: Apache-2.0

"""Copy the intact rows of a damaged store to a new one; restore leases set aside."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Any

from os_acc.objects.lease import Lease
from os_acc.store import errors, records, regions, schema
from os_acc.store.regions import RegionRow, RegionState
from os_acc.store.schema import CLAIMS, COPIED, LEASES, META, REGIONS, Table


def rebuild(image: bytes, path: str, *, is_new: bool = False) -> tuple[bytes, int, int]:
    """Return a new store with all that can be read of a damaged one.

    The result is the new image, and the numbers of recovered and unreadable leases.

    :param image: the damaged store; b"": nothing is left of it.
    :param path: its file, for messages.
    :param is_new: no store has existed before, so that all regions are verified.
    :raises StateUnavailable: SQLite lacks memory, for example; damage is no error.
    """
    with schema.opened(b"", path) as new:
        schema.create(new)
        counts = 0, 0
        if not is_new:
            regions.mark_lost(new)
            with schema.opened(image, path) as old:
                counts = _copy(old, new)
        new.execute("COMMIT")
        return new.serialize(), *counts


def _copy(old: sqlite3.Connection, new: sqlite3.Connection) -> tuple[int, int]:
    """Copy every intact row except events, and each claim whose lease is not intact.

    Such a claim keeps its device out of use, even if its digest does not match: it
    may be the only remaining record.
    """
    # A wrong name in the schema then costs only one table or index.
    old.execute("PRAGMA writable_schema = ON")
    recovered: set[str] = set()
    unreadable = 0
    last = max((epoch for _, epoch, _ in _intact(old, META)), default=0)
    for values in _scan(old, "leases", LEASES.listed):
        row = records.LeaseRow(*values)
        try:
            lease = records.lease_of(*row[1:])
        except schema.Damaged as error:
            unreadable += 1
            new.execute(
                "INSERT INTO damaged_leases VALUES (?, ?, ?, ?, ?, ?)",
                (*row[1:], str(error)),
            )
            continue
        if lease.uuid not in recovered:
            recovered.add(lease.uuid)
            last = max(last, lease.epoch)
            LEASES.put(new, [row[1:-1]])
            records.restore_claims(new, lease)
    lost = [
        (address, lease)
        for _, address, lease in _scan(old, "claims", "address, lease")
        if isinstance(address, str) and isinstance(lease, str)
        if lease not in recovered
    ]
    CLAIMS.put(new, lost, keep=True)
    for table in COPIED:
        table.put(new, _intact(old, table), keep=True)
    if are_complete := _are_regions_complete(old):
        new.execute("DELETE FROM regions")
    for values in _intact(old, REGIONS):
        region = RegionRow(*values)
        # A later record, now lost, may have made a verified region unverified.
        if are_complete or region.state == RegionState.UNVERIFIED:
            regions.put(new, *region)
        elif region.image:
            regions.put(new, region.key, "", RegionState.UNVERIFIED, region.image)
    schema.set_epoch(new, last)
    return len(recovered), unreadable


def restore_leases(connection: sqlite3.Connection) -> list[Lease]:
    """Return leases to their table that were set aside and can be read.

    An older os_acc sets a lease aside if it does not know a value in its record. A
    lease is restored only if it still claims all its addresses.
    """
    restored = []
    for values in connection.execute(
        f"SELECT rowid, {LEASES.listed} FROM damaged_leases ORDER BY rowid"
    ).fetchall():
        row = records.LeaseRow(*values)
        try:
            lease = records.lease_of(*row[1:])
        except schema.Damaged:
            continue
        claims = CLAIMS.read(connection, "lease = ?", lease.uuid)
        if {address for address, _ in claims} != set(records.addresses_of(lease)):
            continue
        # The row as it is: it may have fields of a still newer os_acc.
        connection.execute(
            f"INSERT OR IGNORE INTO leases ({LEASES.listed}) VALUES (?, ?, ?, ?, ?)",
            row[1:],
        )
        connection.execute("DELETE FROM damaged_leases WHERE rowid = ?", (row.rowid,))
        restored.append(lease)
    return restored


def _are_regions_complete(connection: sqlite3.Connection) -> bool:
    """Return whether all records of regions are present and intact."""
    with _damage_ignored():
        (verdict,) = connection.execute("PRAGMA integrity_check(regions)").fetchone()
        return verdict == "ok" and not REGIONS.rows(connection)[1]
    return False


def _intact(connection: sqlite3.Connection, table: Table) -> Iterator[tuple[Any, ...]]:
    for _, *row in _scan(connection, table.name, table.listed):
        if table.is_intact(tuple(row)):
            yield tuple(row[:-1])


def _scan(
    connection: sqlite3.Connection, table: str, columns: str
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table with their rowid; none if columns are missing."""
    # Keyed by all values: a damaged rowid may equal that of another row.
    found: dict[tuple[Any, ...], None] = {}
    # A scan ends at a damaged page; the rows behind it are reached from the
    # other end. Indexes are not used: they may be damaged.
    for direction in ("ASC", "DESC"):
        with _damage_ignored():
            for row in connection.execute(
                f"SELECT rowid, {columns} FROM {table} NOT INDEXED"
                f" ORDER BY rowid {direction}"
            ):
                found[row] = None
    yield from sorted(found, key=lambda row: int(row[0]))


@contextlib.contextmanager
def _damage_ignored() -> Iterator[None]:
    """Ignore damage, and no other error: what is not read now would be lost."""
    try:
        yield
    except UnicodeDecodeError:
        # SQLite's message quotes a damaged name.
        return
    except sqlite3.Error as error:
        # A damaged name makes a statement wrong.
        if not errors.is_damage(error, sqlite3.SQLITE_ERROR):
            raise
