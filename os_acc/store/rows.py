# SPDX-License-Identifier: Apache-2.0

"""Leases as rows of an open transaction; no policy and no locks here."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from os_acc import exception
from os_acc.objects import epoch
from os_acc.objects.epoch import AcceptedEpochs
from os_acc.objects.lease import Lease
from os_acc.objects.pci import PciAddress
from os_acc.store import codec, meta
from os_acc.store.proven_tables import CLAIMS, RECORDED

COLUMNS = "rowid, uuid, consumer, epoch, payload, digest"


class LeaseRow(NamedTuple):
    """One row as SQLite gives it; in a damaged file, anything may be in it."""

    rowid: int
    uuid: object
    consumer: object
    epoch: object
    payload: object
    digest: object


def lease_of(row: LeaseRow) -> Lease:
    """The lease of a row that proves itself.

    :raises codec.Unreadable: the row is not what was once written.
    """
    if not isinstance(row.payload, str):
        raise codec.DecodeError("its payload is not text")
    if codec.digest(row.payload) != row.digest:
        raise codec.DecodeError("its payload does not match its digest")
    lease = codec.decode(row.payload)
    if (row.uuid, row.consumer, row.epoch) != (
        lease.uuid,
        lease.consumer,
        lease.epoch,
    ):
        raise codec.DecodeError("its columns do not match its payload")
    return lease


def select(
    connection: sqlite3.Connection, condition: str = "TRUE", *arguments: object
) -> list[LeaseRow]:
    """Rows in the order in which they were added."""
    cursor = connection.execute(
        f"SELECT {COLUMNS} FROM leases WHERE {condition} ORDER BY rowid",
        arguments,
    )
    return [LeaseRow(*values) for values in cursor]


def next_epoch(
    connection: sqlite3.Connection, now: int, accepted: AcceptedEpochs | None = None
) -> int:
    """The next number, above all that this store gave out, and near ``now``.

    :param now: microseconds; makes the number rise even if the store is lost.
    :param accepted: by the helper, which has refused a number; None: it has not.
        The number may then be lower than those before. The counter follows no
        further up than the helper would on this store's word.
    """
    last = meta.read(connection).epoch
    own = min(max(last + 1, now), epoch.LIMIT)
    chosen = accepted.nearest(own) if accepted else own
    kept = chosen if chosen <= epoch.AcceptedEpochs.at(last, now).limit else own
    meta.set_epoch(connection, kept)
    return chosen


def insert(connection: sqlite3.Connection, lease: Lease) -> None:
    """Write a new row; its addresses have to be claimed separately."""
    payload = codec.encode(lease)
    connection.execute(
        "INSERT INTO leases (uuid, consumer, epoch, payload, digest)"
        " VALUES (?, ?, ?, ?, ?)",
        (lease.uuid, lease.consumer, lease.epoch, payload, codec.digest(payload)),
    )


def update(connection: sqlite3.Connection, row: LeaseRow, lease: Lease) -> None:
    """Write a lease in the place of one that was read before."""
    payload = codec.encode(lease, previous=str(row.payload))
    connection.execute(
        "UPDATE leases SET consumer = ?, epoch = ?, payload = ?, digest = ?"
        " WHERE rowid = ?",
        (
            lease.consumer,
            lease.epoch,
            payload,
            codec.digest(payload),
            row.rowid,
        ),
    )


def delete(connection: sqlite3.Connection, row: LeaseRow) -> None:
    """Remove a row, and what its lease claims."""
    connection.execute("DELETE FROM leases WHERE rowid = ?", (row.rowid,))
    release(connection, row)


def release(connection: sqlite3.Connection, row: LeaseRow) -> None:
    """Remove what a lease claims."""
    connection.execute("DELETE FROM claims WHERE lease = ?", (row.uuid,))


def claim(connection: sqlite3.Connection, lease: Lease) -> str | None:
    """Claim all addresses of a lease; the first one that is taken, or None."""
    for address in addresses_of(lease):
        if not CLAIMS.put(connection, [(address, lease.uuid)], keep=True):
            return address
        connection.execute("DELETE FROM recorded WHERE address = ?", (address,))
    return None


def restore_claims(connection: sqlite3.Connection, lease: Lease) -> None:
    """Claim what a lease has to hold, wherever nobody else holds it."""
    claims = [(address, lease.uuid) for address in addresses_of(lease)]
    CLAIMS.put(connection, claims, keep=True)


def addresses_of(lease: Lease) -> list[str]:
    """All addresses that a lease takes from the host, sorted."""
    return [str(address) for address in sorted({lease.address, *lease.members})]


def set_aside(connection: sqlite3.Connection, row: LeaseRow, found: str) -> None:
    """Move a damaged row out of the way; what it claims stays claimed.

    :param found: when and why, for people.
    """
    # Within SQL, so that the bytes stay as they are, text or not.
    connection.execute(
        "INSERT INTO damaged"
        " SELECT uuid, consumer, epoch, payload, digest, ?"
        " FROM leases WHERE rowid = ?",
        (found, row.rowid),
    )
    connection.execute("DELETE FROM leases WHERE rowid = ?", (row.rowid,))


_ORPHANS = "lease NOT IN (SELECT uuid FROM leases)"


def orphans(connection: sqlite3.Connection) -> Iterator[PciAddress]:
    """Addresses that are claimed by leases which cannot be read any more."""
    yield from _parsed(CLAIMS.read(connection, f"{_ORPHANS} ORDER BY address"))


def _parsed(found: Iterable[tuple[str, str]]) -> Iterator[PciAddress]:
    for text, _ in found:
        try:
            yield PciAddress.parse(text)
        except exception.InvalidPciAddress:
            continue


def claims_of(connection: sqlite3.Connection, row: LeaseRow) -> Iterator[PciAddress]:
    """Addresses that the lease of a row claims, whether it can be read or not."""
    yield from _parsed(CLAIMS.read(connection, "lease = ?", row.uuid))


def forget_orphans(connection: sqlite3.Connection, address: PciAddress) -> int:
    """Drop the damaged lease that claims an address; how many claims it had."""
    condition = f"{_ORPHANS} AND lease = (SELECT lease FROM claims WHERE address = ?)"
    connection.execute(
        "DELETE FROM damaged WHERE uuid IN"
        f" (SELECT lease FROM claims WHERE {condition})",
        (str(address),),
    )
    return connection.execute(
        f"DELETE FROM claims WHERE {condition}", (str(address),)
    ).rowcount


def recorded(connection: sqlite3.Connection) -> Mapping[PciAddress, str]:
    """What the helper has taken for leases that are not here, by their uuids.

    A copy of the helper's list, for those who cannot ask the helper. A lost row is
    no harm: the helper refuses to take such a function for another lease.
    """
    rows = RECORDED.read(connection, "address NOT IN (SELECT address FROM claims)")
    found: dict[PciAddress, str] = {}
    for text, lease in rows:
        for address in _parsed([(text, lease)]):
            found[address] = lease
    return MappingProxyType(found)


def keep_recorded(
    connection: sqlite3.Connection, claimed: Mapping[PciAddress, str]
) -> None:
    """Record what the helper has listed, in place of what it listed before."""
    connection.execute("DELETE FROM recorded")
    RECORDED.put(
        connection, [(str(address), lease) for address, lease in claimed.items()]
    )
