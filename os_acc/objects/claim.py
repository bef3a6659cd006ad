# SPDX-License-Identifier: Apache-2.0

"""A function that the operator has named, and what goes with it."""

from __future__ import annotations

import dataclasses

from os_acc.objects.device import Handle
from os_acc.objects.numa import NUMAPolicy
from os_acc.objects.pci import PciAddress, PciFunction


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceTags:
    """The tags of one value of ``[os_acc] device_spec``.

    :ivar resource_class: Placement's name; None leaves it to the plugin.
    :ivar traits: to be added to those that the plugin finds.
    :ivar num_vfs: how many VFs to create on a PF; None: leave them alone.
    :ivar prebound: the device is expected on vfio-pci already.
    :ivar allow_no_reset: offer the device although it cannot be reset.
    :ivar numa_policy: how near to a guest it has to be, where the guest does
        not say.
    """

    resource_class: str | None = None
    traits: frozenset[str] = frozenset()
    num_vfs: int | None = None
    prebound: bool = False
    allow_no_reset: bool = False
    numa_policy: NUMAPolicy | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class NamedFunction:
    """A function that the operator has named, whether it is usable or not.

    :ivar parent: the PF where the function is a VF, else the function.
    """

    function: PciFunction
    parent: PciFunction
    tags: DeviceTags


@dataclasses.dataclass(frozen=True, slots=True)
class UsableFunction:
    """A usable function, with the rest of its IOMMU group.

    :ivar parent: the PF where the function is a VF, else the function.
    :ivar members: all functions that go to vfio-pci together, sorted.
    """

    function: PciFunction
    parent: PciFunction
    tags: DeviceTags
    members: tuple[PciAddress, ...]
    iommu_group: int

    def handle(self) -> Handle:
        """The accelerator that a guest gets of this claim."""
        return Handle(
            address=self.function.address,
            members=self.members,
            iommu_group=self.iommu_group,
            numa_node=self.function.numa_node,
            numa_policy=self.tags.numa_policy,
        )
