# SPDX-License-Identifier: Apache-2.0

"""Frozen values that describe a simulated host, and become a tree."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Mapping

from os_acc.objects import pci
from os_acc.testing.device_specs import OF_VF, AttributeSpec, DflSpec, NvmeSpec

#: A driver's or a device's (vendor, product).
Ids = tuple[int, int]

#: Functions that vfio-pci refuses unless loaded with ``disable_denylist=1``
#: (drivers/vfio/pci/vfio_pci.c): QAT C3xxx, C62x, DH895xCC, PF and VF; DSA
#: and IAX of Sapphire Rapids.
DENYLIST: tuple[Ids, ...] = (
    (0x8086, 0x19E2),
    (0x8086, 0x19E3),
    (0x8086, 0x37C8),
    (0x8086, 0x37C9),
    (0x8086, 0x0435),
    (0x8086, 0x0443),
    (0x8086, 0x0B25),
    (0x8086, 0x0CFE),
)


@dataclasses.dataclass(frozen=True, slots=True)
class ClassDeviceSpec:
    """A device that a driver makes of a function: a netdev, a disk, a DRM card."""

    subsystem: str
    name: str
    attributes: tuple[tuple[str, str], ...] = ()
    children: tuple[ClassDeviceSpec, ...] = ()


def netdev(name: str, *, up: bool = False) -> ClassDeviceSpec:
    """Return a network interface."""
    # IFF_UP is bit 0 of flags (include/uapi/linux/if.h).
    flags, state = ("0x1003", "up") if up else ("0x1002", "down")
    return ClassDeviceSpec("net", name, (("flags", flags), ("operstate", state)))


def nvme(
    number: int, serial: str, *, partitions: int = 0, namespaces: tuple[int, ...] = (1,)
) -> ClassDeviceSpec:
    """Return an NVMe controller with disks, the first one partitioned or not.

    :param namespaces: the NSIDs of the disks.
    """
    disk = f"nvme{number}n{namespaces[0] if namespaces else 1}"
    size = ("size", "2097152")
    parts = tuple(
        ClassDeviceSpec(
            "block",
            f"{disk}p{n}",
            (*_node(259, 16 * number + n, f"{disk}p{n}"), size, ("partition", str(n))),
        )
        for n in range(1, partitions + 1)
    )
    controller = f"nvme{number}"
    return ClassDeviceSpec(
        "nvme",
        controller,
        (*_node(242, number, controller), ("serial", f"{serial:<20}")),
        tuple(
            ClassDeviceSpec(
                "block",
                name,
                (*_node(259, 16 * number + 1000 * at, name), size, ("nsid", str(nsid))),
                () if at else parts,
            )
            for at, nsid in enumerate(namespaces)
            for name in (f"nvme{number}n{nsid}",)
        ),
    )


def drm(number: int) -> ClassDeviceSpec:
    """Return a DRM card."""
    card = f"card{number}"
    return ClassDeviceSpec("drm", card, _node(226, number, f"dri/{card}"))


def _node(major: int, minor: int, name: str) -> tuple[tuple[str, str], ...]:
    """Return the attributes of a device with a node below ``/dev``."""
    uevent = f"MAJOR={major}\nMINOR={minor}\nDEVNAME={name}"
    return (("dev", f"{major}:{minor}"), ("uevent", uevent))


@dataclasses.dataclass(frozen=True, slots=True)
class SriovSpec:
    """SR-IOV of a PF, and its VFs.

    :ivar total: ``sriov_totalvfs``.
    :ivar product: the VFs' device id; their vendor is the PF's.
    :ivar driver: the host driver of the VFs, empty for none.
    :ivar configurable: whether the PF's driver has ``sriov_configure``.
    :ivar limit: number of VFs beyond which the driver makes none, yet succeeds.
    :ivar makes_all: the driver makes all VFs for any number (QAT).
    :ivar removed_with_driver: the PF's driver removes the VFs when unbound.
    :ivar boot_vfs: number of VFs that the host's own boot scripts make.
    :ivar netdev: the name of each VF's network interface, ``{}`` its index.
    :ivar vf_attributes: the attributes that each VF's driver makes.
    :ivar own_vf_attributes: those of single VFs, by their indexes; one replaces that of
        the same name.
    :ivar vf_migration: see :attr:`MdevTypeSpec.migration`, on another driver than
        vfio-pci.
    """

    total: int
    product: int
    driver: str = ""
    offset: int = 16
    stride: int = 1
    configurable: bool = True
    limit: int | None = None
    makes_all: bool = False
    removed_with_driver: bool = True
    boot_vfs: int = 0
    reset_methods: tuple[str, ...] = ("flr",)
    netdev: str = ""
    vf_attributes: tuple[AttributeSpec, ...] = ()
    own_vf_attributes: tuple[tuple[AttributeSpec, ...], ...] = ()
    vf_migration: tuple[int, int] = (0, 0)

    def attributes_of(self, index: int) -> tuple[AttributeSpec, ...]:
        """Return the attributes of the VF with this index."""
        own = self.own_vf_attributes[index : index + 1]
        found = {each.name: each for each in self.vf_attributes}
        return tuple((found | {each.name: each for each in sum(own, ())}).values())


@dataclasses.dataclass(frozen=True, slots=True)
class MdevTypeSpec:
    """A type of mediated devices.

    :ivar cost: the part of the parent's capacity that one of them takes.
    :ivar migration: the flags and the size that VFIO answers; (0, 0): ENOTTY.
    """

    name: str
    cost: int = 1
    title: str = ""
    description: str = ""
    device_api: str = "vfio-pci"
    migration: tuple[int, int] = (0, 0)


@dataclasses.dataclass(frozen=True, slots=True)
class MdevParentSpec:
    """A parent of mediated devices.

    :ivar name: of a virtual device; '' for a PCI function.
    :ivar capacity: shared by its types.
    :ivar refusal: the errno of a creation without capacity: EUSERS if the core counts
        (``mdev_driver.max_instances``), else that of the driver.
    """

    name: str
    capacity: int
    types: tuple[MdevTypeSpec, ...]
    refusal: int = errno.EUSERS


@dataclasses.dataclass(frozen=True, slots=True)
class FunctionSpec:
    """One PCI function.

    :ivar driver: its host driver at boot, empty for none.
    :ivar parent: the address of the bridge above it; empty: on a root bus.
    :ivar group_of: the address of the function whose IOMMU group it shares;
        empty: a group of its own.
    :ivar isolated: False puts it in no IOMMU group.
    :ivar reserved: further lines of its group's ``reserved_regions``.
    :ivar reset_methods: empty: it cannot be reset alone.
    :ivar no_bus_reset: whether the kernel never resets its bus
        (PCI_DEV_FLAGS_NO_BUS_RESET).
    :ivar devices: the devices that its host driver makes.
    :ivar attributes: further attribute files, (name, text).
    :ivar shown: attribute files that its host driver makes, (name, text).
    :ivar dfl: the card for dfl-pci; None: it is no such card.
    :ivar nvme: the NVMe controller; None: as :class:`.NvmeSpec` by default.
    :ivar mdevs: the parent of mediated devices that its driver makes of it, or None.
    :ivar driver_attributes: attribute files that its host driver makes, with the
        effect of a write.
    :ivar migration: see :attr:`SriovSpec.vf_migration`.
    :raises InvalidInput: an address is malformed.
    :raises ValueError: ``parent`` or ``group_of`` is not a lower address.
    """

    address: str
    vendor: int
    product: int
    class_code: int
    driver: str = ""
    subsystem_vendor: int = 0
    subsystem_product: int = 0
    revision: int = 0
    numa_node: int = -1
    parent: str = ""
    group_of: str = ""
    isolated: bool = True
    reserved: tuple[str, ...] = ()
    reset_methods: tuple[str, ...] = ("flr", "bus")
    boot_vga: bool = False
    sriov: SriovSpec | None = None
    devices: tuple[ClassDeviceSpec, ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()
    shown: tuple[tuple[str, str], ...] = ()
    dfl: DflSpec | None = None
    mdevs: MdevParentSpec | None = None
    driver_attributes: tuple[AttributeSpec, ...] = ()
    nvme: NvmeSpec | None = None
    no_bus_reset: bool = False
    migration: tuple[int, int] = (0, 0)

    def __post_init__(self) -> None:
        own = pci.PciAddress.parse(self.address)
        for other in filter(None, (self.parent, self.group_of)):
            # Functions are added in this order, at boot and at reboot.
            if pci.PciAddress.parse(other) >= own:
                raise ValueError(f"{other} must come before {own}")

    @property
    def ids(self) -> Ids:
        return (self.vendor, self.product)

    @property
    def is_bridge(self) -> bool:
        """Whether it has the header of a PCI or CardBus bridge."""
        return self.class_code >> 8 in (0x0604, 0x0607, 0x0609)

    @property
    def serial(self) -> str:
        """The serial number of its NVMe controller; '' if it has none."""
        if self.nvme is not None and self.nvme.serial:
            return self.nvme.serial
        named = (
            dict(each.attributes) for each in self.devices if each.subsystem == "nvme"
        )
        # The record of a host may have none.
        return next((each.get("serial", "").strip() for each in named), "")

    @property
    def class_devices(self) -> tuple[ClassDeviceSpec, ...]:
        """The devices that its host driver makes, with its serial number."""
        return tuple(
            dataclasses.replace(
                each,
                attributes=tuple(
                    {**dict(each.attributes), "serial": f"{self.serial:<20}"}.items()
                ),
            )
            if each.subsystem == "nvme"
            else each
            for each in self.devices
        )

    def at(self, moved: Mapping[str, str]) -> FunctionSpec:
        """Return the function after a renumbering of buses.

        :param moved: the new addresses, by the former ones.
        """
        return dataclasses.replace(
            self,
            address=moved.get(self.address, self.address),
            parent=moved.get(self.parent, self.parent),
            group_of=moved.get(self.group_of, self.group_of),
        )

    def vf(self, index: int) -> FunctionSpec:
        """Return the VF with this index.

        :raises ValueError: this function is no PF.
        """
        if self.sriov is None:
            raise ValueError(f"{self.address} is no PF")
        name = self.sriov.netdev.format(index)
        devices = (netdev(name),) if name else ()
        own = None
        if self.nvme is not None:
            private = dict(enumerate(self.nvme.private)).get(index, ())
            own = dataclasses.replace(
                self.nvme,
                namespaces=private,
                cmic=self.nvme.cmic | OF_VF,
                serial=self.serial,
            )
            if private:
                # Its number does not collide with those of drives in tests.
                devices = (nvme(100 + index, self.serial, namespaces=private),)
        return FunctionSpec(
            address=self.vf_address(index),
            vendor=self.vendor,
            product=self.sriov.product,
            class_code=self.class_code,
            driver=self.sriov.driver,
            subsystem_vendor=self.subsystem_vendor,
            subsystem_product=self.subsystem_product,
            revision=self.revision,
            numa_node=self.numa_node,
            parent=self.parent,
            isolated=self.isolated,
            reset_methods=self.sriov.reset_methods,
            devices=devices,
            nvme=own,
            driver_attributes=self.sriov.attributes_of(index),
            migration=self.sriov.vf_migration,
        )

    def vf_index(self, address: str) -> int:
        """Return the index of the VF at an address.

        :raises ValueError: this function is no PF.
        """
        if self.sriov is None:
            raise ValueError(f"{self.address} is no PF")
        distance = _routing_id(address) - _routing_id(self.address)
        return (distance - self.sriov.offset) // self.sriov.stride

    def vf_address(self, index: int) -> str:
        """Return the address of the VF with this index.

        PCI Express base specification, 9.3.3.8: First VF Offset, VF Stride.

        :raises ValueError: this function is no PF.
        """
        if self.sriov is None:
            raise ValueError(f"{self.address} is no PF")
        place = _routing_id(self.address) + self.sriov.offset
        place += index * self.sriov.stride
        domain = self.address.partition(":")[0]
        return f"{domain}:{place >> 8:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"


def _routing_id(address: str) -> int:
    own = pci.PciAddress.parse(address)
    return own.bus << 8 | own.slot << 3 | own.function


@dataclasses.dataclass(frozen=True, slots=True)
class DriverSpec:
    """A PCI driver.

    :ivar ids: the functions that it binds to without a ``driver_override``.
    :ivar sriov: whether it has ``sriov_configure``.
    :ivar rejects: the functions that its probe rejects with EINVAL.
    :ivar manages_dma: whether it may share an IOMMU group with a guest.
    """

    name: str
    ids: tuple[Ids, ...] = ()
    sriov: bool = False
    rejects: tuple[Ids, ...] = ()
    manages_dma: bool = False

    def __or__(self, other: DriverSpec) -> DriverSpec:
        """Return a driver for the functions of both."""
        return DriverSpec(
            self.name,
            tuple(dict.fromkeys(self.ids + other.ids)),
            self.sriov or other.sriov,
            tuple(dict.fromkeys(self.rejects + other.rejects)),
            self.manages_dma or other.manages_dma,
        )


@dataclasses.dataclass(frozen=True, slots=True)
class NodeSpec:
    """One NUMA node; its number is its place in the host.

    :ivar cpus: a list as the kernel writes them; empty: it has memory alone.
    :ivar memory: in MiB; 0: it has CPUs alone.
    :ivar socket: the package of its CPUs; -1: unknown to the kernel.
    :ivar threads: number of successive CPUs that are one core.
    :ivar distances: to each node; empty: 10 to itself and 21 to the others.
    :ivar huge_pages: their sizes in KiB, and their number at boot.
    """

    cpus: str = ""
    memory: int = 65536
    socket: int = 0
    threads: int = 1
    distances: tuple[int, ...] = ()
    huge_pages: tuple[tuple[int, int], ...] = ((2048, 0), (1048576, 0))


@dataclasses.dataclass(frozen=True, slots=True)
class HostSpec:
    """A host.

    :ivar nodes: its NUMA nodes; empty: the kernel was built without NUMA,
        and there are one CPU and 64 GiB.
    :ivar iommu: whether the IOMMU is on.
    :ivar vfio: whether vfio-pci is loaded.
    :ivar vfio_cdev: whether VFIO makes a character device of each device, for iommufd
        (CONFIG_VFIO_DEVICE_CDEV).
    :ivar vfio_groups: whether it makes one of each IOMMU group (CONFIG_VFIO_GROUP).
    :ivar denylist: the functions that vfio-pci denies.
    :ivar disable_denylist: vfio-pci's parameter of that name.
    :ivar mounts: lines of ``/proc/mounts``.
    :ivar swaps: device nodes with swap space.
    :ivar drivers: drivers beyond those that the functions name.
    :ivar mdev_parents: virtual parents of mediated devices.
    :ivar module_aliases: lines of the kernel's ``modules.alias``.
    """

    functions: tuple[FunctionSpec, ...] = ()
    nodes: tuple[NodeSpec, ...] = (NodeSpec("0-7"), NodeSpec("8-15", socket=1))
    iommu: bool = True
    vfio: bool = True
    vfio_cdev: bool = False
    vfio_groups: bool = True
    denylist: tuple[Ids, ...] = DENYLIST
    disable_denylist: bool = False
    mounts: tuple[str, ...] = ("/dev/sda1 / ext4 rw,relatime 0 0",)
    swaps: tuple[str, ...] = ()
    drivers: tuple[DriverSpec, ...] = ()
    mdev_parents: tuple[MdevParentSpec, ...] = ()
    module_aliases: tuple[str, ...] = ()
