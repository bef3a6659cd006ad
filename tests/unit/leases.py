# SPDX-License-Identifier: Apache-2.0

"""Leases for tests that need no host."""

from __future__ import annotations

import dataclasses

from os_acc.objects.device import AttachHandle
from os_acc.objects.lease import Guest, Lease, LeaseState, Owner, PriorBinding
from os_acc.objects.mdev import DeviceAddress
from os_acc.objects.pci import PciAddress, PciIdentity
from os_acc.objects.request_group import GroupAllocation
from os_acc.testing import uuid_of

IDENTITY = PciIdentity(0x10DE, 0x2235, 0x10DE, 0x145A, 0xA1)


def lease(
    *members: DeviceAddress,
    group: str = "",
    provider: str = uuid_of(3),
    resource_class: str = "CUSTOM_ACCELERATOR_GPU",
    iommu_group: int | None = 7,
    numa_node: int | None = None,
    driver: str | None = None,
    name: str = "",
    **changes: object,
) -> Lease:
    """Return a held lease of functions, or of a slot.

    :param driver: the prior driver of each function.
    """
    made = Lease(
        uuid=uuid_of(1),
        consumer=uuid_of(2),
        owner=Owner.NOVA,
        state=LeaseState.HELD,
        wanted=GroupAllocation(group, provider, resource_class, 1),
        handle=AttachHandle(members[0], members, iommu_group, numa_node),
        prior=tuple(
            PriorBinding(each, IDENTITY, driver, None)
            for each in members
            if isinstance(each, PciAddress)
        ),
        request="d1ce",
        boot_id=uuid_of(4),
        guest=Guest(name),
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]
