# SPDX-License-Identifier: Apache-2.0

"""Providers and leases with units to count."""

from __future__ import annotations

import dataclasses

from os_acc.objects.device import AttachHandle, Device, Provider
from os_acc.objects.lease import Lease, LeaseState
from os_acc.objects.pci import PciAddress, PciIdentity
from os_acc.objects.records import NO_NAMES, PublishedNames, RecordedState
from os_acc.objects.region import Region
from os_acc.placement import device_traits
from os_acc.testing import uuid_of
from tests.unit import leases

CLASS, OTHER_CLASS = "CUSTOM_ACCELERATOR_NIC", "CUSTOM_ACCELERATOR_GPU"
_IDENTITY = PciIdentity(0x8086, 0x1592, 0, 0, 0, "")


def place(number: int, function: int = 0) -> PciAddress:
    return PciAddress(0, 0x3B, number, function)


def handle(number: int, functions: int = 1) -> AttachHandle:
    members = tuple(place(number, each) for each in range(functions))
    return AttachHandle(members[0], members, iommu_group=number, numa_node=None)


def provider(
    number: int, *handles: AttachHandle, traits: tuple[str, ...] = ("CUSTOM_FAST",)
) -> Provider:
    device = Device(
        plugin="pci",
        address=place(number),
        identity=_IDENTITY,
        resource_class=CLASS,
        traits=frozenset(traits),
        handles=handles,
        numa_node=None,
    )
    return Provider(uuid_of(number), f"node1_accel_{number}", device)


def region(number: int, holds: str) -> Provider:
    """Return a region's provider; the region holds this function.

    Its traits are those of a region without a lease.
    """
    made = provider(number, handle(number), traits=())
    at, identity = made.device.address, made.device.identity
    found = Region(at, identity, 0, uuid_of(73), holds, (at,))
    device = dataclasses.replace(made.device, region=found)
    return dataclasses.replace(
        made, device=device_traits.described(device, RecordedState())
    )


def lease(
    of: str,
    of_handle: AttachHandle,
    state: LeaseState = LeaseState.HELD,
    **more: object,
) -> Lease:
    """Return a lease on the provider with this uuid; '': adopted by hand."""
    return leases.lease(
        *of_handle.members,
        provider=of,
        iommu_group=of_handle.iommu_group,
        uuid=uuid_of(1000 + of_handle.iommu_group),
        state=state,
        **{"resource_class": CLASS if of else "", **more},
    )


class RecordedNames:
    """The record of published names, as in the store."""

    def __init__(self, initial: PublishedNames = NO_NAMES) -> None:
        self.kept = initial

    def published_names(self) -> PublishedNames:
        return self.kept

    def change_published_names(
        self, added: PublishedNames, removed: PublishedNames = NO_NAMES
    ) -> None:
        self.kept = (self.kept - removed) | added
