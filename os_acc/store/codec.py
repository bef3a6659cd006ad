# SPDX-License-Identifier: Apache-2.0

"""Encode leases as canonical JSON, and decode them.

Equal leases give equal text, so that a digest of the text verifies the record.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from os_acc.objects.lease import Lease, LeaseState, Owner, PriorBinding
from os_acc.objects.numa import Affinity
from os_acc.objects.pci import PciAddress, PciIdentity
from os_acc.objects.region import Programming, Region
from os_acc.objects.request import AttachTarget

#: Version of the payload. A higher one only adds fields to this one.
VERSION = 1


class DecodeError(Exception):
    """The record does not match its digest, or is not the record of a lease."""


def digest(payload: str) -> str:
    """Return the SHA-256 of a payload, as hexadecimal text."""
    # Text from a damaged file may contain surrogates.
    return hashlib.sha256(payload.encode("utf-8", "surrogatepass")).hexdigest()


def proof(*values: object) -> str:
    """Return the digest of plain values and their types; '' for other types."""
    if not all(isinstance(value, str | int) for value in values):
        return ""
    return digest(json.dumps(values))


def encode(lease: Lease, previous: str | None = None) -> str:
    """Return the payload of a lease.

    :param previous: the payload to replace; fields that a newer os_acc added
        are kept.
    """
    fields: dict[str, Any] = json.loads(previous) if previous else {}
    newest = max(VERSION, int(fields.get("version", VERSION)))
    fields |= {
        "version": newest,
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
        "affinity": lease.affinity and lease.affinity.value,
        "physfns": [str(each) for each in lease.physfns],
        "profile": lease.profile,
    }
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def decode(payload: str) -> Lease:
    """Return the lease that a payload records.

    :raises DecodeError: the payload is not the record of a lease.
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
            address=PciAddress.parse(fields["address"]),
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
            # Records from before regions existed lack this field.
            programming=_decode_programming(fields.get("programming")),
            attach_target=AttachTarget(fields.get("attach_target", "VM")),
            affinity=_decode_affinity(fields.get("affinity")),
            physfns=tuple(map(PciAddress.parse, fields.get("physfns", ()))),
            profile=fields.get("profile", ""),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DecodeError(f"not the record of a lease: {error}") from error


def _decode_affinity(value: str | None) -> Affinity | None:
    return None if value is None else Affinity(value)


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
        "identity": [*prior.identity.numbers, prior.identity.serial],
        "driver": prior.driver,
        "driver_override": prior.driver_override,
    }


def _decode_prior(fields: Mapping[str, Any]) -> PriorBinding:
    return PriorBinding(
        address=PciAddress.parse(fields["address"]),
        identity=PciIdentity(*fields["identity"]),
        driver=fields["driver"],
        driver_override=fields["driver_override"],
    )
