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
    """One raw row; in a damaged file, the values may be anything."""

    rowid: int
    uuid: object
    consumer: object
    epoch: object
    payload: object
    digest: object


def lease_of(row: LeaseRow) -> Lease:
    """Return the lease of a row.

    :raises codec.DecodeError: the row is damaged.
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
    """Return rows in order of creation."""
    cursor = connection.execute(
        f"SELECT {COLUMNS} FROM leases WHERE {condition} ORDER BY rowid",
        arguments,
    )
    return [LeaseRow(*values) for values in cursor]


def next_epoch(
    connection: sqlite3.Connection, now: int, accepted: AcceptedEpochs | None = None
) -> int:
    """Return the next epoch: above all earlier ones, and close to ``now``.

    :param now: microseconds; makes epochs rise even if the store is lost.
    :param accepted: epochs that the helper accepts, after it rejected one;
        None: none was rejected. The result may then be lower than earlier
        epochs. The counter rises no further than the helper's own limit for
        this store.
    """
    last = meta.read(connection).epoch
    own = min(max(last + 1, now), epoch.LIMIT)
    chosen = accepted.nearest(own) if accepted else own
    kept = chosen if chosen <= epoch.AcceptedEpochs.at(last, now).limit else own
    meta.set_epoch(connection, kept)
    return chosen


def insert(connection: sqlite3.Connection, lease: Lease) -> None:
    """Insert a row; its addresses have to be claimed separately."""
    payload = codec.encode(lease)
    connection.execute(
        "INSERT INTO leases (uuid, consumer, epoch, payload, digest)"
        " VALUES (?, ?, ?, ?, ?)",
        (lease.uuid, lease.consumer, lease.epoch, payload, codec.digest(payload)),
    )


def update(connection: sqlite3.Connection, row: LeaseRow, lease: Lease) -> None:
    """Replace the lease of a row that was read before."""
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
    """Remove a row and the claims of its lease."""
    connection.execute("DELETE FROM leases WHERE rowid = ?", (row.rowid,))
    release(connection, row)


def release(connection: sqlite3.Connection, row: LeaseRow) -> None:
    """Remove the claims of a lease."""
    connection.execute("DELETE FROM claims WHERE lease = ?", (row.uuid,))


def claim(connection: sqlite3.Connection, lease: Lease) -> str | None:
    """Claim all addresses of a lease; return the first one taken, or None."""
    for address in addresses_of(lease):
        if not CLAIMS.put(connection, [(address, lease.uuid)], keep=True):
            return address
        connection.execute("DELETE FROM recorded WHERE address = ?", (address,))
    return None


def restore_claims(connection: sqlite3.Connection, lease: Lease) -> None:
    """Claim the addresses of a lease again, unless another lease claims them."""
    claims = [(address, lease.uuid) for address in addresses_of(lease)]
    CLAIMS.put(connection, claims, keep=True)


def addresses_of(lease: Lease) -> list[str]:
    """Return all addresses that a lease claims, sorted."""
    return [str(address) for address in sorted({lease.address, *lease.members})]


def set_aside(connection: sqlite3.Connection, row: LeaseRow, found: str) -> None:
    """Move a damaged row to the table of damaged ones; its claims stay.

    :param found: time and reason, for operators.
    """
    # Within SQL, so that bytes that are not text stay unchanged.
    connection.execute(
        "INSERT INTO damaged"
        " SELECT uuid, consumer, epoch, payload, digest, ?"
        " FROM leases WHERE rowid = ?",
        (found, row.rowid),
    )
    connection.execute("DELETE FROM leases WHERE rowid = ?", (row.rowid,))


_ORPHANS = "lease NOT IN (SELECT uuid FROM leases)"


def orphans(connection: sqlite3.Connection) -> Iterator[PciAddress]:
    """Yield addresses claimed by leases that cannot be read."""
    yield from _parsed(CLAIMS.read(connection, f"{_ORPHANS} ORDER BY address"))


def _parsed(found: Iterable[tuple[str, str]]) -> Iterator[PciAddress]:
    for text, _ in found:
        try:
            yield PciAddress.parse(text)
        except exception.InvalidInput:
            continue


def claims_of(connection: sqlite3.Connection, row: LeaseRow) -> Iterator[PciAddress]:
    """Yield the addresses that the lease of a row claims, readable or not."""
    yield from _parsed(CLAIMS.read(connection, "lease = ?", row.uuid))


def forget_orphans(connection: sqlite3.Connection, address: PciAddress) -> int:
    """Delete the damaged lease that claims an address; return its claim count."""
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
    """Return functions that the helper claims for leases missing here.

    This copies the helper's list for readers without access to the helper. A
    lost row does no harm: the helper rejects a claim for another lease.

    :returns: lease uuids by address.
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
    """Replace the copy of the helper's list."""
    connection.execute("DELETE FROM recorded")
    RECORDED.put(
        connection, [(str(address), lease) for address, lease in claimed.items()]
    )
