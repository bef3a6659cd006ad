# SPDX-License-Identifier: Apache-2.0

"""The view of a lease that a plugin gets."""

from __future__ import annotations

import dataclasses

from os_acc.objects.image import BitstreamRequest
from os_acc.objects.lease import PriorBinding
from os_acc.objects.mdev import DeviceAddress
from os_acc.objects.numa import NO_POLICIES, Affinity, PolicySources
from os_acc.objects.pci import PciAddress, PciIdentity
from os_acc.objects.region import Region
from os_acc.objects.request import AttachTarget
from os_acc.objects.vfio_driver import VFIO_PCI


@dataclasses.dataclass(frozen=True, slots=True)
class LeaseView:
    """A lease, as a plugin sees it in a call.

    :ivar uuid: of the lease, and of its mediated device.
    :ivar consumer: the UUID of the instance, or of the migration that holds the lease.
    :ivar instance_name: '' if unknown, as is ``project_id``.
    :ivar provider: the UUID of the resource provider.
    :ivar address: the function attached to the guest, or the slot of its mediated
        device.
    :ivar prior: the driver and ``driver_override`` of each function before the lease,
        which the library restores; empty for a mediated device.
    :ivar parent: the identity of a mediated device's parent; None: a virtual parent,
        or no mediated device.
    :ivar cells: the NUMA cells of the host that the guest uses; empty: unknown.
    :ivar request_uuid: the UUID of the accelerator request, which stays if the device
        is replaced.
    :ivar group: the suffix of the request group; '' for the unnumbered one.
    :ivar profile: the name of the device profile of that group; '' for a group of the
        flavor itself, or if unknown.
    :ivar required: the traits that the flavor requires of an FPGA region.
    :ivar bitstream_request: the bitstream that the flavor requests; None: none.
    :ivar image_id: the image of the guest for which the contents of its region were
        decided; '' without a region, or if unknown.
    :ivar region: the FPGA region, as it was when the lease was prepared; None: no
        region.
    :ivar attach_target: the user of the accelerator. ``prepare`` and ``release`` are
        called for a guest's alone, or if its plugin erases the device.
    :ivar driver: the VFIO driver that the function has while a guest has it.
    :ivar vgpu_type: the type of vGPU that the VF was planned as; 0: none.
    :ivar physical_network: the network that its card was tagged with; '' for none.
    :ivar iommu_group: of the function; None: a mediated device.
    :ivar numa_node: the NUMA node of the function; None: unknown.
    :ivar affinity: of that node to ``cells``; None without cells.
    :ivar policies: the NUMA policies that apply to the device, by their source.
    :ivar boot_id: the boot of the host in which ``prior`` was read, as in
        ``/proc/sys/kernel/random/boot_id``.
    :ivar physfns: the PFs of its VFs, also of those that were removed since.
    :ivar created_at: when the consumer got the accelerator, in microseconds since
        1970, UTC.
    :ivar former_consumer: in ``erase``, the consumer whose data is erased: the device
        has no other one. '' before.
    :ivar erased: the part of the erasure that the last call of ``erase`` returned.
    """

    uuid: str
    consumer: str
    instance_name: str
    project_id: str
    provider: str
    resource_class: str
    address: DeviceAddress
    prior: tuple[PriorBinding, ...]
    parent: PciIdentity | None = None
    cells: tuple[int, ...] = ()
    request_uuid: str = ""
    group: str = ""
    profile: str = ""
    required: tuple[str, ...] = ()
    bitstream_request: BitstreamRequest | None = None
    image_id: str = ""
    region: Region | None = None
    attach_target: AttachTarget = AttachTarget.VM
    driver: str = VFIO_PCI
    vgpu_type: int = 0
    physical_network: str = ""
    iommu_group: int | None = None
    numa_node: int | None = None
    affinity: Affinity | None = None
    policies: PolicySources = NO_POLICIES
    boot_id: str = ""
    physfns: tuple[PciAddress, ...] = ()
    created_at: int = 0
    former_consumer: str = ""
    erased: float = 0.0

    @property
    def functions(self) -> tuple[PciAddress, ...]:
        """All functions that the lease takes from the host."""
        return tuple(each.address for each in self.prior)
