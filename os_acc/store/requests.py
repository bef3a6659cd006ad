# SPDX-License-Identifier: Apache-2.0

"""Accelerator requests as rows of an open transaction; no policy here.

A damaged row counts as missing. The devices of its request belong to the lease,
which carries its own digest.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Iterable, Sequence

from oslo_log import log

from os_acc.objects.accelerator_request import AcceleratorRequest, RequestState
from os_acc.objects.lease import Lease
from os_acc.store import codec, records
from os_acc.store.schema import REQUESTS

LOG = log.getLogger(__name__)


def select(
    connection: sqlite3.Connection, condition: str = "TRUE", *arguments: object
) -> list[AcceleratorRequest]:
    """Return requests in order of creation, without their leases.

    Damaged rows count as missing.
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


def put(connection: sqlite3.Connection, requests: Iterable[AcceleratorRequest]) -> None:
    """Write requests, each in place of an earlier record of it."""
    REQUESTS.put(connection, [(each.uuid, _encode(each)) for each in requests])


def unbind(connection: sqlite3.Connection, uuids: Iterable[str]) -> None:
    """Record the given requests as unbound; ignore uuids of other leases.

    A request whose binding failed keeps that state, so that it stays visible.
    """
    for uuid in uuids:
        for each in select(connection, "uuid = ?", uuid):
            if each.recorded is not RequestState.BIND_FAILED:
                unbound = dataclasses.replace(each, recorded=RequestState.UNBOUND)
                put(connection, [unbound])


def shrink(connection: sqlite3.Connection, rest: Sequence[Lease], count: int) -> None:
    """Record for the other leases of a request that some of them have ended.

    :param rest: the leases that their consumer still has.
    :param count: how many have ended.
    """
    # A quarantined lease may belong to an earlier request and is not counted.
    ready = sum(lease.is_of_request for lease in rest)
    for lease in rest:
        made = select(connection, "uuid = ?", lease.request_uuid)
        # At least `ready`: a lease with a damaged record is never given back.
        size = max(lease.request_size - count, ready)
        if made and lease.request_size > size:
            # The epoch stays: a concurrent unplug may have read this lease.
            less = dataclasses.replace(lease, request_size=size)
            (row,) = records.select(connection, "uuid = ?", lease.uuid)
            records.put(connection, less, str(row.payload))


def change_instance(
    connection: sqlite3.Connection, uuids: Iterable[str], instance_uuid: str
) -> None:
    """Record a new instance for the bound requests among the given uuids."""
    for uuid in uuids:
        for each in select(connection, "uuid = ?", uuid):
            if each.binding:
                binding = dataclasses.replace(each.binding, instance_uuid=instance_uuid)
                put(connection, [dataclasses.replace(each, binding=binding)])


def delete(connection: sqlite3.Connection, uuids: Iterable[str]) -> None:
    """Remove rows."""
    connection.executemany(
        "DELETE FROM requests WHERE uuid = ?", [(each,) for each in uuids]
    )


def _encode(request: AcceleratorRequest) -> str:
    binding = request.binding and dataclasses.replace(request.binding, image_id="")
    fields = codec.encode(dataclasses.replace(request, binding=binding, lease=None))
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))
