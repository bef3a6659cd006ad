# SPDX-License-Identifier: Apache-2.0

"""Leases, claims and accelerator requests as rows of an open transaction.

The payload of a lease is canonical JSON: equal leases give equal text, so that a
digest of the text verifies the record.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from oslo_log import log

from os_acc import exception
from os_acc.objects import epoch, mdev
from os_acc.objects.accelerator_request import AcceleratorRequest, RequestState
from os_acc.objects.drivers import is_driver_name
from os_acc.objects.epoch import AcceptedEpochs
from os_acc.objects.lease import Lease
from os_acc.objects.mdev import DeviceAddress
from os_acc.store import codec, schema
from os_acc.store.errors import AlreadyLeased, StaleLease
from os_acc.store.schema import CLAIMS, HELPER_CLAIMS, LEASES, REQUESTS, Damaged

LOG = log.getLogger(__name__)


class LeaseRow(NamedTuple):
    """One raw row; in a damaged file, the values may be anything."""

    rowid: int
    uuid: object
    consumer: object
    epoch: object
    payload: object
    digest: object


# Each operation reads all rows, and few have changed. Equal values may have other
# types.
@functools.lru_cache(4096, typed=True)
def lease_of(*columns: object) -> Lease:
    """Return the lease of a row of all columns.

    :raises Damaged: the row is damaged.
    """
    if not LEASES.is_intact(columns):
        raise Damaged("it does not match its digest")
    payload = str(columns[LEASES.columns.index("payload")])
    try:
        return decode(payload)
    except Damaged as error:
        # The digest rules out damage.
        raise Damaged(f"{error}; a newer os_acc wrote it") from error


def load(
    connection: sqlite3.Connection, condition: str = "TRUE", *arguments: object
) -> tuple[tuple[Lease, ...], list[tuple[LeaseRow, str]]]:
    """Return the intact leases that match, and the damaged rows with their damage.

    Both are in order of creation.
    """
    leases, damaged = [], []
    for values in connection.execute(schema.selection(LEASES, condition), arguments):
        try:
            leases.append(lease_of(*values[1:]))
        except Damaged as error:
            damaged.append((LeaseRow(*values), str(error)))
    return tuple(leases), damaged


def current(connection: sqlite3.Connection, lease: Lease) -> LeaseRow:
    """Return the row of a lease that has not changed since the lease was read.

    :raises NotFound: the lease is not recorded, or its record is damaged.
    :raises StaleLease: it was changed since.
    """
    for values in connection.execute(
        schema.selection(LEASES, "uuid = ?"), (lease.uuid,)
    ):
        row = LeaseRow(*values)
        if not LEASES.is_intact(row[1:]):
            raise exception.NotFound(
                f"the record of lease {lease.uuid} is damaged",
                kind=exception.ObjectKind.LEASE,
            )
        if row.epoch != lease.epoch:
            raise StaleLease(
                f"lease {lease.uuid} is at epoch {row.epoch}, was read at {lease.epoch}"
            )
        return row
    raise exception.NotFound(
        f"no lease {lease.uuid} of consumer {lease.consumer} is recorded",
        kind=exception.ObjectKind.LEASE,
    )


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
    # The transaction has checked the row.
    (last,) = connection.execute("SELECT epoch FROM meta").fetchone()
    own = min(max(last + 1, now), epoch.LIMIT)
    chosen = accepted.nearest(own) if accepted else own
    counter = chosen if chosen <= epoch.AcceptedEpochs.at(last, now).limit else own
    schema.set_epoch(connection, counter)
    return chosen


def add(connection: sqlite3.Connection, lease: Lease) -> None:
    """Record a new lease, and claim its addresses.

    :raises AlreadyLeased: a lease has its uuid, or claims one of its addresses.
    """
    row = (lease.uuid, lease.consumer, lease.epoch, codec.encode(lease))
    if not LEASES.put(connection, [row], keep=True):
        raise AlreadyLeased(f"lease {lease.uuid} exists already")
    claim(connection, lease)


def change(connection: sqlite3.Connection, lease: Lease) -> None:
    """Write a recorded lease anew; its claims stay.

    Fields that a newer os_acc has added to its payload are kept.
    """
    (previous,) = connection.execute(
        "SELECT payload FROM leases WHERE uuid = ?", (lease.uuid,)
    ).fetchone()
    fields = _with_unknown(json.loads(codec.encode(lease)), json.loads(previous))
    row = (lease.uuid, lease.consumer, lease.epoch, codec.encode(fields))
    LEASES.put(connection, [row])


def delete(connection: sqlite3.Connection, lease: Lease) -> None:
    """Remove the record and the claims of a lease."""
    connection.execute("DELETE FROM leases WHERE uuid = ?", (lease.uuid,))
    release_claims(connection, lease)


def release_claims(connection: sqlite3.Connection, lease: Lease) -> None:
    """Remove the claims of a lease."""
    connection.execute("DELETE FROM claims WHERE lease = ?", (lease.uuid,))


def claim(connection: sqlite3.Connection, lease: Lease) -> None:
    """Claim all addresses of a lease.

    :raises AlreadyLeased: another lease claims one of them.
    """
    for address in addresses_of(lease):
        if not CLAIMS.put(connection, [(address, lease.uuid)], keep=True):
            raise AlreadyLeased(f"{address} is claimed by another lease")
        connection.execute("DELETE FROM helper_claims WHERE address = ?", (address,))


def restore_claims(connection: sqlite3.Connection, lease: Lease) -> None:
    """Claim the addresses of a lease again, unless another lease claims them."""
    claims = [(address, lease.uuid) for address in addresses_of(lease)]
    CLAIMS.put(connection, claims, keep=True)


def addresses_of(lease: Lease) -> list[str]:
    """Return all addresses that a lease claims, sorted."""
    return [str(address) for address in sorted({lease.address, *lease.members})]


def set_aside(connection: sqlite3.Connection, row: LeaseRow, reason: str) -> None:
    """Move a damaged row to the table of damaged leases; its claims stay.

    :param reason: for operators.
    """
    # Within SQL, so that bytes that are not text stay unchanged.
    connection.execute(
        "INSERT INTO damaged_leases"
        " SELECT uuid, consumer, epoch, payload, digest, ?"
        " FROM leases WHERE rowid = ?",
        (reason, row.rowid),
    )
    connection.execute("DELETE FROM leases WHERE rowid = ?", (row.rowid,))


_WITHOUT_LEASE = "lease NOT IN (SELECT uuid FROM leases)"


def damaged_claims(connection: sqlite3.Connection) -> tuple[DeviceAddress, ...]:
    """Return the addresses claimed by leases without an intact row, sorted."""
    return tuple(
        sorted(each for each, _ in _parsed(CLAIMS.read(connection, _WITHOUT_LEASE)))
    )


def _parsed(
    claims: Iterable[tuple[str, str]],
) -> Iterator[tuple[DeviceAddress, str]]:
    for text, lease in claims:
        with contextlib.suppress(exception.InvalidInput):
            yield mdev.parse_address(text), lease


def delete_damaged(connection: sqlite3.Connection, address: DeviceAddress) -> int:
    """Delete the damaged lease that claims an address; return its claim count."""
    condition = (
        f"{_WITHOUT_LEASE} AND lease = (SELECT lease FROM claims WHERE address = ?)"
    )
    connection.execute(
        "DELETE FROM damaged_leases WHERE uuid IN"
        f" (SELECT lease FROM claims WHERE {condition})",
        (str(address),),
    )
    return connection.execute(
        f"DELETE FROM claims WHERE {condition}", (str(address),)
    ).rowcount


def read_helper_claims(connection: sqlite3.Connection) -> Mapping[DeviceAddress, str]:
    """Return functions and slots that the helper claims for leases missing here.

    This copies the helper's list for readers without access to the helper. A
    lost row does no harm: the helper rejects a claim for another lease.

    :returns: lease uuids by address.
    """
    rows = HELPER_CLAIMS.read(connection, "address NOT IN (SELECT address FROM claims)")
    return dict(_parsed(rows))


def _with_unknown(new: Any, old: Any) -> Any:
    """Return new JSON with the fields of the old one that this os_acc does not know.

    Those of a device that another one has replaced are not kept.
    """
    match new, old:
        case dict(), dict() if new.get("address") == old.get("address"):
            return old | {
                name: _with_unknown(each, old.get(name))
                if isinstance(each, dict | list) and each != old.get(name)
                else each
                for name, each in new.items()
            }
        case list(), list() if len(new) == len(old):
            return list(map(_with_unknown, new, old))
    return new


def decode(payload: str) -> Lease:
    """Return the lease that a payload records.

    :raises Damaged: the payload is not the record of a lease.
    """
    try:
        lease: Lease = codec.decode(Lease, json.loads(payload))
        if not is_driver_name(lease.driver):
            raise ValueError(f"{lease.driver!r} is not the name of a driver")
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"not the record of a lease: {error}") from error
    return lease


# -- accelerator requests ---------------------------------------------------------


def select_requests(
    connection: sqlite3.Connection, condition: str = "TRUE", *arguments: object
) -> list[AcceleratorRequest]:
    """Return requests in order of creation, without their leases.

    A damaged row counts as missing. The devices of its request belong to the lease,
    which carries its own digest.
    """
    rows, damaged = REQUESTS.rows(connection, condition, *arguments)
    if damaged:
        LOG.error("%d records of accelerator requests are damaged", len(damaged))
    found = []
    for uuid, payload in rows:
        try:
            found.append(codec.decode(AcceleratorRequest, json.loads(payload)))
        except (KeyError, TypeError, ValueError) as error:
            LOG.error("Accelerator request %s is damaged: %s", uuid, error)
    return found


def with_leases(
    found: Iterable[AcceleratorRequest], leases: Iterable[Lease]
) -> tuple[AcceleratorRequest, ...]:
    """Return the requests, each with its lease."""
    by_uuid = {lease.request_uuid: lease for lease in leases}
    return tuple(
        dataclasses.replace(each, lease=by_uuid.get(each.uuid)) for each in found
    )


def put_requests(
    connection: sqlite3.Connection, requests: Iterable[AcceleratorRequest]
) -> None:
    """Write requests, each in place of an earlier record of it."""
    REQUESTS.put(connection, [(each.uuid, _encode_request(each)) for each in requests])


def unbind_requests(connection: sqlite3.Connection, uuids: Iterable[str]) -> None:
    """Record the given requests as unbound; ignore uuids of other leases.

    A request whose binding failed keeps that state, so that it stays visible.
    """
    for uuid in uuids:
        for each in select_requests(connection, "uuid = ?", uuid):
            if each.recorded is not RequestState.BIND_FAILED:
                unbound = dataclasses.replace(each, recorded=RequestState.UNBOUND)
                put_requests(connection, [unbound])


def shrink_requests(
    connection: sqlite3.Connection, rest: Sequence[Lease], count: int
) -> None:
    """Record for the other leases of a request that some of them have ended.

    :param rest: the leases that their consumer still has.
    :param count: how many have ended.
    """
    # A quarantined lease may belong to an earlier request and is not counted.
    ready = sum(lease.is_of_request for lease in rest)
    for lease in rest:
        made = select_requests(connection, "uuid = ?", lease.request_uuid)
        # At least `ready`: a lease with a damaged record is never given back.
        size = max(lease.request_size - count, ready)
        if made and lease.request_size > size:
            # The epoch stays: a concurrent unplug may have read this lease.
            change(connection, dataclasses.replace(lease, request_size=size))


def change_instance(
    connection: sqlite3.Connection, uuids: Iterable[str], instance_uuid: str
) -> None:
    """Record a new instance for the bound requests among the given uuids."""
    for uuid in uuids:
        for each in select_requests(connection, "uuid = ?", uuid):
            if each.binding:
                binding = dataclasses.replace(each.binding, instance_uuid=instance_uuid)
                put_requests(connection, [dataclasses.replace(each, binding=binding)])


def _encode_request(request: AcceleratorRequest) -> str:
    binding = request.binding and dataclasses.replace(request.binding, image_id="")
    return codec.encode(dataclasses.replace(request, binding=binding, lease=None))
