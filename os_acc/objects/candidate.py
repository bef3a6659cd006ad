# SPDX-License-Identifier: Apache-2.0

"""Functions and mediated devices that ``device_spec`` names, and their tags."""

from __future__ import annotations

import dataclasses

from os_acc.objects.device import AttachHandle
from os_acc.objects.mdev import MdevType
from os_acc.objects.numa import NUMAPolicy
from os_acc.objects.pci import PciAddress, PciFunction
from os_acc.objects.vfio_driver import AUTO, VFIO_PCI, is_vfio_driver


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceTags:
    """The tags of one value of ``[os_acc] device_spec``.

    :ivar resource_class: Placement's name; None: chosen by the plugin.
    :ivar traits: added to the traits found by the plugin.
    :ivar num_vfs: the number of VFs to create on a PF; None: unchanged.
    :ivar prebound: the device is expected to be bound to vfio-pci already.
    :ivar allow_no_reset: offer the device although it cannot be reset.
    :ivar numa_policy: the NUMA policy if the guest requests none.
    :ivar mdev_types: the types of mediated devices to offer on the device, which then
        is not offered itself.
    :ivar allow_no_erase: offer the device although nothing erases the data of the
        guest before.
    :ivar physical_network: the network that a network card is connected to; None: the
        operator names none.
    :ivar function: the use of a network card, such as ``ovs``; None: the operator names
        none.
    :ivar qat_services: the services of the VFs to create on a QuickAssist PF, as the
        kernel writes them (``sym;asym``); None: unchanged.
    :ivar vfio_driver: the driver that the device has for a guest; ``auto``: the
        one that the kernel's modules name for it.
    :ivar vgpu_type: the type of vGPU that a VF becomes on NVIDIA's driver; 0: none.
    :ivar trust_guest_contents: accept the function that an FPGA region reports even
        after a guest could program it.
    """

    resource_class: str | None = None
    traits: frozenset[str] = frozenset()
    num_vfs: int | None = None
    prebound: bool = False
    allow_no_reset: bool = False
    numa_policy: NUMAPolicy | None = None
    mdev_types: tuple[str, ...] = ()
    allow_no_erase: bool = False
    physical_network: str | None = None
    function: str | None = None
    qat_services: str | None = None
    vfio_driver: str = VFIO_PCI
    vgpu_type: int = 0
    trust_guest_contents: bool = False

    @property
    def stays(self) -> bool:
        """Whether the device stays on a driver of the host while a guest has it."""
        is_bound = self.vfio_driver == AUTO or is_vfio_driver(self.vfio_driver)
        return self.vgpu_type != 0 or not is_bound


@dataclasses.dataclass(frozen=True, slots=True)
class MatchedFunction:
    """A function that ``[os_acc] device_spec`` matches, usable or not.

    :ivar parent: the PF of a VF, otherwise the function itself.
    """

    function: PciFunction
    parent: PciFunction
    tags: DeviceTags


@dataclasses.dataclass(frozen=True, slots=True)
class UsableFunction:
    """A matched function that may be attached, with the rest of its IOMMU group.

    :ivar parent: the PF of a VF, otherwise the function itself; also for a VF
        inside a guest, where the PF is not visible.
    :ivar members: all functions that are bound to VFIO drivers together, sorted,
        including the function itself.
    :ivar iommu_group: the number of the group.
    :ivar driver: the VFIO driver that the function has while a guest has it; the
        other members have vfio-pci.
    """

    function: PciFunction
    parent: PciFunction
    tags: DeviceTags
    members: tuple[PciAddress, ...]
    iommu_group: int
    driver: str = VFIO_PCI

    def handle(self) -> AttachHandle:
        """Return the handle with which the function is attached to a guest."""
        return AttachHandle(
            address=self.function.address,
            members=self.members,
            iommu_group=self.iommu_group,
            numa_node=self.function.numa_node,
            numa_policy=self.tags.numa_policy,
            physical_network=self.tags.physical_network,
            driver=self.driver,
            vgpu_type=self.tags.vgpu_type,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class OfferedType:
    """A type of mediated devices that ``[os_acc] device_spec`` names, with its units.

    Attributes of the kernel are those of
    Documentation/ABI/testing/sysfs-bus-vfio-mdev.

    :ivar parent: the PCI function; None: a virtual parent.
    :ivar title: the attribute ``name``; '' if there is none.
    :ivar description: the attribute of this name; '' if there is none.
    :ivar handles: the units, leased or not. Those that other mediated devices of the
        parent leave no capacity for are faulty.
    """

    type: MdevType
    parent: PciFunction | None
    tags: DeviceTags
    title: str
    description: str
    handles: tuple[AttachHandle, ...]
