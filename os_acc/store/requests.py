# SPDX-License-Identifier: Apache-2.0

"""Accelerator requests as rows of an open transaction; no policy here.

A damaged row counts as missing. The devices of its request belong to the lease,
which carries its own digest.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Iterable, Iterator, Sequence

from oslo_log import log

from os_acc.objects.accelerator_request import AcceleratorRequest, RequestState
from os_acc.objects.lease import Lease
from os_acc.store import codec, records, schema

LOG = log.getLogger(__name__)

COLUMNS = "uuid, payload, digest"


def select(
    connection: sqlite3.Connection, condition: str = "TRUE", *arguments: object
) -> list[AcceleratorRequest]:
    """Return requests in order of creation, without their leases."""
    cursor = connection.execute(
        f"SELECT {COLUMNS} FROM requests WHERE {condition} ORDER BY rowid", arguments
    )
    return list(_intact(cursor))


def with_leases(
    found: Iterable[AcceleratorRequest], leases: Iterable[Lease]
) -> tuple[AcceleratorRequest, ...]:
    """Return the requests, each with its lease."""
    by_uuid = {lease.request_uuid: lease for lease in leases}
    return tuple(
        dataclasses.replace(each, lease=by_uuid.get(each.uuid)) for each in found
    )


def insert(
    connection: sqlite3.Connection, requests: Iterable[AcceleratorRequest]
) -> None:
    """Write new rows."""
    for each in requests:
        payload = _encode(each)
        connection.execute(
            f"INSERT INTO requests ({COLUMNS}) VALUES (?, ?, ?)",
            (each.uuid, payload, schema.digest(payload)),
        )


def update(
    connection: sqlite3.Connection, requests: Iterable[AcceleratorRequest]
) -> int:
    """Replace rows by uuid; return how many existed."""
    changed = 0
    for each in requests:
        payload = _encode(each)
        changed += connection.execute(
            "UPDATE requests SET payload = ?, digest = ? WHERE uuid = ?",
            (payload, schema.digest(payload), each.uuid),
        ).rowcount
    return changed


def unbind(connection: sqlite3.Connection, uuids: Iterable[str]) -> None:
    """Record the given requests as unbound; ignore uuids of other leases.

    A request whose binding failed keeps that state, so that it stays visible.
    """
    for uuid in uuids:
        for each in select(connection, "uuid = ?", uuid):
            if each.recorded is not RequestState.BIND_FAILED:
                unbound = dataclasses.replace(each, recorded=RequestState.UNBOUND)
                update(connection, [unbound])


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
            records.update(connection, row, less)


def change_instance(
    connection: sqlite3.Connection, uuids: Iterable[str], instance_uuid: str
) -> None:
    """Record a new instance for the bound requests among the given uuids."""
    for uuid in uuids:
        for each in select(connection, "uuid = ?", uuid):
            if each.binding:
                binding = dataclasses.replace(each.binding, instance_uuid=instance_uuid)
                update(connection, [dataclasses.replace(each, binding=binding)])


def delete_damaged(connection: sqlite3.Connection) -> None:
    """Remove damaged rows, which count as missing."""
    intact = {each.uuid for each in select(connection)}
    for (uuid,) in connection.execute("SELECT uuid FROM requests").fetchall():
        if uuid not in intact:
            connection.execute("DELETE FROM requests WHERE uuid IS ?", (uuid,))


def delete(connection: sqlite3.Connection, uuids: Iterable[str]) -> None:
    """Remove rows."""
    connection.executemany(
        "DELETE FROM requests WHERE uuid = ?", [(each,) for each in uuids]
    )


def copy(connection: sqlite3.Connection, rows: Iterable[tuple[object, ...]]) -> None:
    """Copy the intact rows of a damaged store into a new one."""
    found = {each.uuid: each for each in _intact(rows)}
    insert(connection, found.values())


def _intact(rows: Iterable[tuple[object, ...]]) -> Iterator[AcceleratorRequest]:
    for uuid, payload, digest in rows:
        if isinstance(payload, str) and schema.digest(payload) == digest:
            try:
                found = _decode(payload)
            except (KeyError, TypeError, ValueError) as error:
                LOG.error("Accelerator request %s is damaged: %s", uuid, error)
                continue
            if found.uuid == uuid:
                yield found
                continue
        LOG.error("The record of accelerator request %s is damaged", uuid)


def _encode(request: AcceleratorRequest) -> str:
    binding = request.binding and dataclasses.replace(request.binding, image_id="")
    fields = codec.encode(dataclasses.replace(request, binding=binding, lease=None))
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def _decode(payload: str) -> AcceleratorRequest:
    found: AcceleratorRequest = codec.decode(AcceleratorRequest, json.loads(payload))
    return found
