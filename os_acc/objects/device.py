# SPDX-License-Identifier: Apache-2.0

"""Devices that plugins offer, their candidates, and reasons for rejecting others."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping
from types import NoneType

from os_acc import exception
from os_acc.objects.drivers import AUTO, VFIO_PCI, is_vfio_driver
from os_acc.objects.mdev import DeviceAddress, DeviceName, MdevType, function_of
from os_acc.objects.numa import NUMAPolicy
from os_acc.objects.pci import PciAddress, PciFunction, PciIdentity
from os_acc.objects.region import Region
from os_acc.objects.typed import expect, expect_all, expect_number, plain_text


@dataclasses.dataclass(frozen=True, slots=True)
class AttachHandle:
    """One accelerator as attached to a guest; an attach handle of Cyborg's API.

    A plugin gets it from :meth:`.UsableFunction.handle`, or from
    :attr:`.OfferedType.handles`, and changes its ``fault`` alone.

    :ivar address: the function attached to the guest, or the slot of its mediated
        device.
    :ivar members: all functions bound to VFIO drivers with it because the IOMMU cannot
        isolate them from each other (sorted, including ``address``, without
        bridges); of a mediated device, its slot.
    :ivar iommu_group: the number of their group; None: a mediated device gets its
        group when it is created.
    :ivar numa_node: the NUMA node of the function; None if the kernel reports none.
    :ivar numa_policy: the NUMA policy if the guest requests none; None: Nova's
        ``legacy``.
    :ivar fault: why it must not be attached at present; empty while healthy. A
        faulty accelerator stays in the inventory, as reserved.
    :ivar driver: the VFIO driver that the function has while a guest has it, by the
        name of its directory in ``/sys/bus/pci/drivers``.
    :ivar physical_network: the network that a network card is connected to, as tagged;
        None: no tag names one.
    :ivar vgpu_type: the type of the vGPU that a VF becomes on NVIDIA's driver, as
        tagged; 0: none.
    :ivar live_migratable: whether a guest may move with it, as tagged, if its driver
        can migrate it.
    """

    address: DeviceAddress
    members: tuple[DeviceAddress, ...]
    iommu_group: int | None
    numa_node: int | None
    fault: str = ""
    numa_policy: NUMAPolicy | None = None
    driver: str = VFIO_PCI
    physical_network: str | None = None
    vgpu_type: int = 0
    live_migratable: bool = True


class Erasure(enum.Enum):
    """The way in which a device forgets the data of the guest before.

    RESET: a reset of the function does it. vfio-pci performs it before each guest, and
    so does the driver of a function that stays on its own. Not for mediated devices.
    REMOVAL: the accelerator is made for one guest, and its data ends with it: mediated
    devices, and vGPUs on functions that stay on their driver.
    PLUGIN: :meth:`.PluginBase.erase` does it, before another guest may get the device;
    not for mediated devices, which are created for each guest.
    NONE: nothing does it; the device is offered only if ``[os_acc] device_spec``
    tags it ``allow_no_erase``.
    """

    RESET = "reset"
    REMOVAL = "removal"
    PLUGIN = "plugin"
    NONE = "none"


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """One accelerator card or function, as described by its plugin.

    It becomes one resource provider, named after ``address``.
    Allocations refer to this name, so it must not depend on the functions that are
    usable at the moment. A plugin that could choose among several functions takes
    one that :attr:`.Candidates.provider_addresses` has, or else the first of all
    functions in :attr:`.Candidates.matched`.

    :ivar plugin: the name of its plugin, :attr:`.PluginBase.name`.
    :ivar address: the function that the provider is named after; of mediated
        devices, their type on their parent.
    :ivar identity: of that function, or of the parent; None: a virtual parent.
    :ivar resource_class: ``CUSTOM_`` and a name, ``FPGA`` or ``PGPU``; another standard
        class of Placement only if a tag of the candidate names it.
    :ivar traits: standard traits of Placement, or ``CUSTOM_`` and a name.
    :ivar handles: the accelerators; their number is the capacity.
    :ivar numa_node: the NUMA node of the device; None if the kernel reports none.
    :ivar region: the FPGA region behind all handles; the library adds its traits.
    :ivar erasure: how the accelerators forget the data of a guest.
    :raises ValueError: an attribute has another type, or a type derived from its own.
    """

    plugin: str
    address: DeviceName
    identity: PciIdentity | None
    resource_class: str
    traits: frozenset[str]
    handles: tuple[AttachHandle, ...]
    numa_node: int | None
    region: Region | None = None
    erasure: Erasure = Erasure.RESET

    def __post_init__(self) -> None:
        expect("Device.plugin", self.plugin, str)
        expect("Device.address", self.address, PciAddress, MdevType)
        expect("Device.identity", self.identity, PciIdentity, NoneType)
        expect("Device.resource_class", self.resource_class, str)
        expect_all("Device.traits", self.traits, frozenset, str)
        expect_all("Device.handles", self.handles, tuple, AttachHandle)
        if self.numa_node is not None:
            expect_number("Device.numa_node", self.numa_node)
        expect("Device.region", self.region, Region, NoneType)
        expect("Device.erasure", self.erasure, Erasure)


@dataclasses.dataclass(frozen=True, slots=True)
class CardProvider:
    """The parent provider of a card's regions; it has no inventory."""

    uuid: str
    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Provider:
    """A device with its resource provider in Placement.

    :ivar card: the parent provider; None: the compute node itself.
    """

    uuid: str
    name: str
    device: Device
    card: CardProvider | None = None


def functions_of(providers: Iterable[Provider]) -> frozenset[DeviceAddress]:
    """Return all functions and slots of the devices of these providers."""
    handles = [each for provider in providers for each in provider.device.handles]
    return frozenset[DeviceAddress]().union(*[each.members for each in handles])


def pci_functions_of(providers: Iterable[Provider]) -> frozenset[PciAddress]:
    """Return all PCI functions of devices, and those of mediated devices' parents."""
    places = map(function_of, functions_of(providers))
    return frozenset(each for each in places if each is not None)


def with_faults(
    handles: Iterable[AttachHandle], faults: Mapping[DeviceAddress, str]
) -> tuple[AttachHandle, ...]:
    """Return handles, with the faults of those that have one by their address."""
    return tuple(
        dataclasses.replace(each, fault=faults[each.address])
        if each.address in faults
        else each
        for each in handles
    )


class RejectReason(enum.Enum):
    """The reason why a device selected by the operator is not offered.

    A plugin uses MANAGEMENT, NOT_ISOLATED, NO_INTERFACE, SEVERAL_REGIONS,
    UNSEEN_REGION and UNREADABLE, and for all other causes UNSUPPORTED, if it likes with
    a :class:`VendorReason`. The others are the library's.
    """

    BRIDGE = "a bridge"
    HOST_USES = "used by the host"
    NOVA_CLAIMS = "claimed by Nova's own options"
    NO_IOMMU = "in no IOMMU group"
    UNSAFE_IOMMU = "in a group of VFIO's no-IOMMU mode"
    RESERVED_REGION = "tied to memory by the firmware"
    NOT_ISOLATED = "its IOMMU group cannot be isolated"
    HAS_VFS = "a PF whose VFs are offered"
    NO_VFS = "without the VFs that device_spec requests"
    PF_LEASED = "a VF of a PF that is leased as a whole"
    VFS_LEASED = "a PF with a leased VF"
    MDEVS_LEASED = "a parent of leased mediated devices"
    LEASED_WHOLE = "leased as a whole, and not for mediated devices"
    NO_MDEV_TYPE = "without the mediated devices that device_spec names"
    NO_RESET = "cannot be reset"
    NO_ERASE = "cannot be erased between guests"
    NO_VFIO_DRIVER = "without the VFIO driver that device_spec requests"
    NO_VGPU = "without the vGPUs that device_spec requests"
    MANAGED = "not for a caller that attaches with managed='yes'"
    DENYLISTED = "refused by vfio-pci (start it with disable_denylist=1)"
    EQUAL_NUMBER = "not told apart by its serial number"
    UNKNOWN_STATE = "prepared for a guest, and no lease of it is recorded"
    NO_INTERFACE = "an FPGA region without an interface id"
    SEVERAL_REGIONS = "an FPGA card with several regions; set num_vfs"
    UNSEEN_REGION = "an FPGA card without regions in dfl-pci"
    UNREADABLE = "unreadable"
    UNSUPPORTED = "not supported by its plugin"
    MANAGEMENT = "a management function, which stays with the host"
    NO_PLUGIN = "supported by no plugin"
    PLUGIN_FAILED = "a plugin failed"
    INVALID = "its plugin broke a rule of the contract"


class VendorReason(enum.Enum):
    """Base of a vendor's own reasons for rejecting a device.

    A plugin derives an enumeration whose values are phrases for the operator, such
    as ``OLD_FIRMWARE = "its firmware is too old"``.
    """


@dataclasses.dataclass(frozen=True, slots=True)
class RejectedDevice:
    """A device that is not offered, and the reason.

    :ivar detail: one phrase for the operator; empty: the reason says it all.
    :ivar vendor_reason: the vendor's own reason, which the operator sees in place of
        ``reason``.
    :raises ValueError: an attribute has another type, or a type derived from its own.
    """

    address: DeviceName
    reason: RejectReason
    detail: str = ""
    vendor_reason: VendorReason | None = None

    def __post_init__(self) -> None:
        expect("RejectedDevice.address", self.address, PciAddress, MdevType)
        expect("RejectedDevice.reason", self.reason, RejectReason)
        if type(self.detail) is not str:
            text = plain_text("RejectedDevice.detail", self.detail)
            object.__setattr__(self, "detail", text)
        if not isinstance(self.vendor_reason, VendorReason | None):
            raise ValueError(
                f"RejectedDevice.vendor_reason is {exception.show(self.vendor_reason)},"
                " not a VendorReason"
            )

    @property
    def phrase(self) -> str:
        """The reason for the operator, without its detail."""
        reason = self.reason if self.vendor_reason is None else self.vendor_reason
        text: str = reason.value
        return text

    def __str__(self) -> str:
        return f"{self.phrase}: {self.detail}" if self.detail else self.phrase


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
    :ivar live_migratable: False: no guest moves with the device.
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
    live_migratable: bool = True

    @property
    def stays(self) -> bool:
        """Whether the device stays on a driver of the host while a guest has it."""
        is_bound = self.vfio_driver == AUTO or is_vfio_driver(self.vfio_driver)
        return self.vgpu_type != 0 or not is_bound


@dataclasses.dataclass(frozen=True, slots=True)
class MatchedFunction:
    """A function that ``[os_acc] device_spec`` matches, usable or not.

    :ivar parent: the PF of a VF, otherwise the function itself; also for a VF
        inside a guest, where the PF is not visible.
    """

    function: PciFunction
    parent: PciFunction
    tags: DeviceTags


@dataclasses.dataclass(frozen=True, slots=True)
class UsableFunction(MatchedFunction):
    """A matched function that may be attached, with the rest of its IOMMU group.

    :ivar members: all functions that are bound to VFIO drivers together, sorted,
        including the function itself.
    :ivar iommu_group: the number of the group.
    :ivar driver: the VFIO driver that the function has while a guest has it; the
        other members have vfio-pci.
    """

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
            live_migratable=self.tags.live_migratable,
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
