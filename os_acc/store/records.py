# SPDX-License-Identifier: Apache-2.0

"""Leases and claims as rows of an open transaction; no policy and no locks here.

The payload of a lease is canonical JSON: equal leases give equal text, so that a
digest of the text verifies the record.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from os_acc import exception
from os_acc.objects import epoch, mdev, vfio_driver
from os_acc.objects.epoch import AcceptedEpochs
from os_acc.objects.image import BitstreamRequest
from os_acc.objects.lease import Lease, LeaseState, Owner, PriorBinding
from os_acc.objects.mdev import DeviceAddress
from os_acc.objects.numa import Affinity, NUMAPolicy, PolicySources
from os_acc.objects.pci import PciAddress, PciIdentity
from os_acc.objects.region import Programming, Region
from os_acc.objects.request import AttachTarget
from os_acc.store import schema
from os_acc.store.errors import StaleLease
from os_acc.store.schema import CLAIMS, HELPER_CLAIMS, Damaged

COLUMNS = "uuid, consumer, epoch, payload, digest"


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

    :raises Damaged: the row is damaged.
    """
    if not isinstance(row.payload, str):
        raise Damaged("its payload is not text")
    if schema.digest(row.payload) != row.digest:
        raise Damaged("its payload does not match its digest")
    try:
        lease = decode(row.payload)
    except Damaged as error:
        # The digest rules out damage.
        raise Damaged(f"{error}; a newer os_acc wrote it") from error
    if (row.uuid, row.consumer, row.epoch) != (
        lease.uuid,
        lease.consumer,
        lease.epoch,
    ):
        raise Damaged("its columns do not match its payload")
    return lease


def select(
    connection: sqlite3.Connection, condition: str = "TRUE", *arguments: object
) -> list[LeaseRow]:
    """Return rows in order of creation."""
    cursor = connection.execute(
        f"SELECT rowid, {COLUMNS} FROM leases WHERE {condition} ORDER BY rowid",
        arguments,
    )
    return [LeaseRow(*values) for values in cursor]


def current(connection: sqlite3.Connection, lease: Lease) -> LeaseRow:
    """Return the row of a lease that has not changed since the lease was read.

    :raises NotFound: the lease is not recorded, or its record is damaged.
    :raises StaleLease: it was changed since.
    """
    found = select(connection, "uuid = ?", lease.uuid)
    if not found:
        raise exception.NotFound(
            f"no lease {lease.uuid} of consumer {lease.consumer} is recorded",
            kind=exception.ObjectKind.LEASE,
        )
    try:
        recorded = lease_of(found[0])
    except Damaged as error:
        raise exception.NotFound(
            f"the record of lease {lease.uuid} is damaged: {error}",
            kind=exception.ObjectKind.LEASE,
        ) from error
    if recorded.epoch != lease.epoch:
        raise StaleLease(
            f"lease {lease.uuid} is at epoch {recorded.epoch}, was read at"
            f" {lease.epoch}"
        )
    return found[0]


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
    last = schema.read_meta(connection).epoch
    own = min(max(last + 1, now), epoch.LIMIT)
    chosen = accepted.nearest(own) if accepted else own
    counter = chosen if chosen <= epoch.AcceptedEpochs.at(last, now).limit else own
    schema.set_epoch(connection, counter)
    return chosen


def dated(leases: Iterable[Lease], now: int) -> Iterator[Lease]:
    """Yield leases with the time of their creation; recorded times stay.

    :param now: microseconds since 1970, UTC.
    """
    for lease in leases:
        yield dataclasses.replace(lease, created_at=lease.created_at or now)


def insert(connection: sqlite3.Connection, lease: Lease) -> None:
    """Insert a row; its addresses have to be claimed separately."""
    payload = encode(lease)
    connection.execute(
        "INSERT INTO leases (uuid, consumer, epoch, payload, digest)"
        " VALUES (?, ?, ?, ?, ?)",
        (lease.uuid, lease.consumer, lease.epoch, payload, schema.digest(payload)),
    )


def update(connection: sqlite3.Connection, row: LeaseRow, lease: Lease) -> None:
    """Replace the lease of a row that was read before."""
    payload = encode(lease, previous=str(row.payload))
    connection.execute(
        "UPDATE leases SET consumer = ?, epoch = ?, payload = ?, digest = ?"
        " WHERE rowid = ?",
        (
            lease.consumer,
            lease.epoch,
            payload,
            schema.digest(payload),
            row.rowid,
        ),
    )


def delete(connection: sqlite3.Connection, row: LeaseRow) -> None:
    """Remove a row and the claims of its lease."""
    connection.execute("DELETE FROM leases WHERE rowid = ?", (row.rowid,))
    release_claims(connection, row)


def release_claims(connection: sqlite3.Connection, row: LeaseRow) -> None:
    """Remove the claims of a lease."""
    connection.execute("DELETE FROM claims WHERE lease = ?", (row.uuid,))


def claim(connection: sqlite3.Connection, lease: Lease) -> str | None:
    """Claim all addresses of a lease; return the first one taken, or None."""
    for address in addresses_of(lease):
        if not CLAIMS.put(connection, [(address, lease.uuid)], keep=True):
            return address
        connection.execute("DELETE FROM helper_claims WHERE address = ?", (address,))
    return None


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


def damaged_claims(connection: sqlite3.Connection) -> Iterator[DeviceAddress]:
    """Yield the addresses claimed by leases without an intact row."""
    yield from _parsed(CLAIMS.read(connection, f"{_WITHOUT_LEASE} ORDER BY address"))


def _parsed(found: Iterable[tuple[str, str]]) -> Iterator[DeviceAddress]:
    for text, _ in found:
        try:
            yield mdev.parse_address(text)
        except exception.InvalidInput:
            continue


def claims_of(connection: sqlite3.Connection, row: LeaseRow) -> Iterator[DeviceAddress]:
    """Yield the addresses that the lease of a row claims, readable or not."""
    yield from _parsed(CLAIMS.read(connection, "lease = ?", row.uuid))


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
    return MappingProxyType(
        {address: lease for text, lease in rows for address in _parsed([(text, lease)])}
    )


def replace_helper_claims(
    connection: sqlite3.Connection, claimed: Mapping[DeviceAddress, str]
) -> None:
    """Replace the copy of the helper's list."""
    connection.execute("DELETE FROM helper_claims")
    HELPER_CLAIMS.put(
        connection, [(str(address), lease) for address, lease in claimed.items()]
    )


def encode(lease: Lease, previous: str | None = None) -> str:
    """Return the payload of a lease.

    :param previous: the payload to replace; fields that a newer os_acc added
        are kept.
    """
    fields: dict[str, Any] = json.loads(previous) if previous else {}
    fields |= {
        "uuid": lease.uuid,
        "consumer": lease.consumer,
        "owner": lease.owner.value,
        "state": lease.state.value,
        "group": lease.group,
        "provider": lease.provider,
        "resource_class": lease.resource_class,
        "address": str(lease.address),
        "iommu_group": lease.iommu_group,
        "numa_node": lease.numa_node,
        "prior": [_encode_prior(prior) for prior in lease.prior],
        "request": lease.request,
        "request_size": lease.request_size,
        "boot_id": lease.boot_id,
        "plugin": lease.plugin,
        "instance_name": lease.instance_name,
        "project_id": lease.project_id,
        "epoch": lease.epoch,
        "reason": lease.reason,
        "programming": lease.programming and _encode_programming(lease.programming),
        "attach_target": lease.attach_target.value,
        "cells": lease.cells,
        "affinity": lease.affinity and lease.affinity.value,
        "policies": _encode_policies(lease.policies),
        "physfns": [str(each) for each in lease.physfns],
        "profile": lease.profile,
        "arq": lease.arq,
        "is_spare": lease.is_spare,
        "image_id": lease.image_id,
        "bitstream_request": lease.bitstream_request
        and dataclasses.asdict(lease.bitstream_request),
        "required": lease.required,
        "created_at": lease.created_at,
        "owes_release": lease.owes_release,
        "parent": lease.parent and _encode_identity(lease.parent),
        "owes_erase": lease.owes_erase,
        "former_consumer": lease.former_consumer,
        "former_uuid": lease.former_uuid,
        "erased": lease.erased,
        "driver": lease.driver,
        "physical_network": lease.physical_network,
        "vgpu_type": lease.vgpu_type,
        "never_held": lease.never_held,
    }
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def decode(payload: str) -> Lease:
    """Return the lease that a payload records.

    :raises Damaged: the payload is not the record of a lease.
    """
    try:
        fields = json.loads(payload)
        return Lease(
            uuid=fields["uuid"],
            consumer=fields["consumer"],
            owner=Owner(fields["owner"]),
            state=LeaseState(fields["state"]),
            group=fields["group"],
            provider=fields["provider"],
            resource_class=fields["resource_class"],
            address=mdev.parse_address(fields["address"]),
            iommu_group=fields["iommu_group"],
            numa_node=fields["numa_node"],
            prior=tuple(_decode_prior(prior) for prior in fields["prior"]),
            request=fields["request"],
            request_size=fields["request_size"],
            boot_id=fields["boot_id"],
            plugin=fields["plugin"],
            instance_name=fields["instance_name"],
            project_id=fields["project_id"],
            epoch=fields["epoch"],
            reason=fields["reason"],
            programming=_decode_programming(fields["programming"]),
            attach_target=AttachTarget(fields["attach_target"]),
            cells=tuple(fields["cells"]),
            affinity=_decode_affinity(fields["affinity"]),
            policies=_decode_policies(fields["policies"]),
            physfns=tuple(map(PciAddress.parse, fields["physfns"])),
            profile=fields["profile"],
            arq=fields["arq"],
            is_spare=fields["is_spare"],
            image_id=fields["image_id"],
            bitstream_request=_decode_request(fields["bitstream_request"]),
            required=tuple(fields["required"]),
            created_at=fields["created_at"],
            owes_release=fields["owes_release"],
            parent=_decode_parent(fields["parent"]),
            owes_erase=fields["owes_erase"],
            former_consumer=fields["former_consumer"],
            former_uuid=fields["former_uuid"],
            erased=fields["erased"],
            driver=_decode_driver(fields["driver"]),
            physical_network=fields["physical_network"],
            vgpu_type=fields["vgpu_type"],
            never_held=fields["never_held"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"not the record of a lease: {error}") from error


def _decode_affinity(value: str | None) -> Affinity | None:
    return None if value is None else Affinity(value)


def _decode_driver(value: object) -> str:
    if not isinstance(value, str) or not vfio_driver.is_name(value):
        raise ValueError(f"{value!r} is not the name of a driver")
    return value


def _decode_request(fields: Mapping[str, str] | None) -> BitstreamRequest | None:
    return None if fields is None else BitstreamRequest(**fields)


def _encode_policies(policies: PolicySources) -> list[str | None]:
    named = dataclasses.astuple(policies)
    return [each and each.value for each in named]


def _decode_policies(values: Sequence[str | None]) -> PolicySources:
    return PolicySources(*(NUMAPolicy(each) if each else None for each in values))


def _encode_programming(programming: Programming) -> dict[str, Any]:
    region = programming.region
    return {
        "card": str(region.card),
        "identity": [*region.identity.numbers, region.identity.serial],
        "number": region.number,
        "interface_id": region.interface_id,
        "held": region.function_id,
        "function_id": programming.function_id,
        "image_id": programming.image_id,
        "hash_algo": programming.hash_algo,
        "hash_value": programming.hash_value,
        "functions": [str(each) for each in region.pci_functions],
        "reached": [[str(place), function] for place, function in region.functions],
        "is_authenticated": region.is_authenticated,
        "is_exact": programming.is_exact,
        "boot_id": programming.boot_id,
    }


def _decode_programming(fields: Mapping[str, Any] | None) -> Programming | None:
    if fields is None:
        return None
    return Programming(
        region=Region(
            card=PciAddress.parse(fields["card"]),
            identity=PciIdentity(*fields["identity"]),
            number=fields["number"],
            interface_id=fields["interface_id"],
            function_id=fields["held"],
            pci_functions=tuple(map(PciAddress.parse, fields["functions"])),
            functions=tuple(
                (PciAddress.parse(place), function)
                for place, function in fields["reached"]
            ),
            is_authenticated=fields["is_authenticated"],
        ),
        function_id=fields["function_id"],
        image_id=fields["image_id"],
        hash_algo=fields["hash_algo"],
        hash_value=fields["hash_value"],
        is_exact=fields["is_exact"],
        boot_id=fields["boot_id"],
    )


def _encode_prior(prior: PriorBinding) -> dict[str, Any]:
    return {
        "address": str(prior.address),
        "identity": _encode_identity(prior.identity),
        "driver": prior.driver,
        "driver_override": prior.driver_override,
    }


def _encode_identity(identity: PciIdentity) -> list[int | str]:
    return [*identity.numbers, identity.serial]


def _decode_parent(values: Sequence[Any] | None) -> PciIdentity | None:
    return None if values is None else PciIdentity(*values)


def _decode_prior(fields: Mapping[str, Any]) -> PriorBinding:
    return PriorBinding(
        address=PciAddress.parse(fields["address"]),
        identity=PciIdentity(*fields["identity"]),
        driver=fields["driver"],
        driver_override=fields["driver_override"],
    )
