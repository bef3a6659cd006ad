# SPDX-License-Identifier: Apache-2.0

"""A real host as the specification of a simulated one.

Only attributes whose read has no effect and takes no lock of a function are read: not
``driver_override``, ``sriov_numvfs`` and ``uevent`` (see :mod:`os_acc.host.pci`),
``config``, ``resource*``, ``rom`` and ``vpd``. Names of mount points, MAC addresses and
names of the host are never recorded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent import futures
from typing import Final

from oslo_log import log

from os_acc import deadlines
from os_acc.exception import HostStepFailed
from os_acc.host import attributes, mdev, numa, pci, usage, vfio
from os_acc.host.attributes import ClassDevice, class_devices
from os_acc.host.pci import Host
from os_acc.objects.drivers import is_vfio_driver
from os_acc.objects.mdev import MdevType
from os_acc.objects.numa import NUMACell
from os_acc.objects.pci import IommuGroup, PciAddress, PciFunction
from os_acc.testing import functions
from os_acc.testing.device_specs import AttributeSpec
from os_acc.testing.specs import (
    ClassDeviceSpec,
    FunctionSpec,
    HostSpec,
    MdevParentSpec,
    MdevTypeSpec,
    NodeSpec,
    SriovSpec,
)

LOG = log.getLogger(__name__)

#: Seconds to wait for the attributes of the driver of one function.
_ANSWER_SECONDS: Final = 5.0
_PAGE: Final = 4096
#: Attributes of the PCI core that a simulated function has as recorded
#: (Documentation/ABI/testing/sysfs-bus-pci, sysfs-bus-pci-devices-aer).
_CORE: Final = (
    *("current_link_speed", "current_link_width", "max_link_speed", "max_link_width"),
    *("aer_dev_correctable", "aer_dev_nonfatal", "aer_dev_fatal", "power_state"),
)
#: All names that the PCI core and the driver core give to files of a function
#: (drivers/pci/pci-sysfs.c, drivers/base/core.c). Any other one is the driver's.
_NOT_THE_DRIVERS: Final = re.compile(
    r"aer_.*|ari_enabled|boot_vga|broken_parity_status|class|config|"
    r"consistent_dma_mask_bits|(current|max)_link_.*|d3cold_allowed|device|devspec|"
    r"dma_mask_bits|driver_override|enable|index|acpi_index|label|irq|"
    r"local_cpu(list|s)|modalias|msi_bus|numa_node|power_state|remove|rescan|reset|"
    r"reset_method|resource.*|revision|rom|(secondary|subordinate)_bus_number|"
    r"serial_number|sriov_.*|subsystem_.*|uevent|vendor|vpd|waiting_for_supplier"
)
_NO_GROUP_OF_THE_DRIVER: Final = frozenset({"power", "msi_irqs", "link", "iommu"})
#: Names of attributes that identify one device, or its owner.
_IDENTIFYING: Final = re.compile(
    r"serial|uuid|guid|wwid|wwn|eui|nguid|mac|addr|token|key|secret", re.IGNORECASE
)
#: The attributes of a class device that discovery reads, by class.
_CLASS_ATTRIBUTES: Final[Mapping[str, tuple[str, ...]]] = {
    "nvme": ("dev", "serial"),
    "block": ("dev", "size", "partition", "nsid"),
    "net": ("flags", "operstate"),
    "drm": ("dev", "status", "enabled", "dpms"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class _Recorder:
    """The views of a host, and the functions whose drivers' attributes are read."""

    root: str
    host: Host
    parents: Mapping[PciAddress, PciAddress]
    devices: Mapping[PciAddress, tuple[ClassDeviceSpec, ...]]
    in_use: frozenset[PciAddress]
    with_drivers: Collection[PciAddress]
    identifying: bool

    def function(self, address: PciAddress) -> FunctionSpec:
        """Return the specification of a function that is no VF."""
        found = self.host.functions[address]
        identity = found.identity
        parent, group = self.parents.get(address), self._group(found)
        # The fake kernel adds functions by address: the first one makes the group.
        first = min(group.members) if group else address
        return FunctionSpec(
            str(address),
            identity.vendor,
            identity.product,
            found.class_code,
            driver=_own_driver(found),
            subsystem_vendor=identity.subsystem_vendor,
            subsystem_product=identity.subsystem_product,
            revision=identity.revision,
            numa_node=-1 if found.numa_node is None else found.numa_node,
            parent=str(parent) if parent and parent < address else "",
            group_of=str(first) if first < address else "",
            isolated=group is not None,
            reserved=_reserved(group) if group and first == address else (),
            reset_methods=found.reset_methods,
            boot_vga=found.class_code >> 8 == 0x0300
            and (address in self.in_use or self._text(address, "boot_vga") == "1"),
            sriov=self._sriov(found),
            devices=self.devices.get(address, ()),
            attributes=tuple(self._core(address)),
            mdevs=self.mdev_parent(str(address)),
            driver_attributes=self._driver_attributes(address),
        )

    def mdev_parent(self, name: str) -> MdevParentSpec | None:
        """Return a parent of mediated devices with the capacity that is free now."""
        found: list[tuple[MdevTypeSpec, int]] = []
        for type_name in mdev.type_names(self.root, name):
            read = mdev.read_type(self.root, MdevType(name, type_name))
            if read is not None:
                spec = MdevTypeSpec(
                    type_name,
                    title=read.title,
                    description=read.description,
                    device_api=read.device_api,
                )
                found.append((spec, read.available))
        if not found:
            return None
        # One more of a type takes its part of the capacity that all types share.
        capacity = math.lcm(*(units for _, units in found if units))
        types = (
            dataclasses.replace(spec, cost=capacity // units if units else capacity + 1)
            for spec, units in found
        )
        return MdevParentSpec(name, capacity, tuple(types))

    def _group(self, function: PciFunction) -> IommuGroup | None:
        number = function.iommu_group
        return None if number is None else self.host.groups.get(number)

    def _sriov(self, pf: PciFunction) -> SriovSpec | None:
        if not pf.total_vfs:
            return None
        vfs = [
            self.host.functions[each] for each in pf.vfs if each in self.host.functions
        ]
        first = vfs[0] if vfs else None
        product = self._text(pf.address, "sriov_vf_device")
        shown = tuple(self._driver_attributes(each.address, pf) for each in vfs)
        return SriovSpec(
            pf.total_vfs,
            int(product, 16) if product else 0,
            driver=_own_driver(first) if first else "",
            offset=int(self._text(pf.address, "sriov_offset") or 0),
            stride=int(self._text(pf.address, "sriov_stride") or 0) or 1,
            boot_vfs=len(vfs),
            reset_methods=first.reset_methods if first else ("flr",),
            netdev=self._netdev_pattern(vfs),
            vf_attributes=shown[0] if shown else (),
            own_vf_attributes=shown if len(set(shown)) > 1 else (),
        )

    def _netdev_pattern(self, vfs: Iterable[PciFunction]) -> str:
        """Return the names of the VFs' interfaces, ``{}`` for the index; '': others."""
        names = [_interface(self.devices.get(vf.address, ())) for vf in vfs]
        pattern = re.sub(r"0(?!.*0)", "{}", names[0]) if names else ""
        expected = [pattern.format(index) for index in range(len(names))]
        return pattern if names == expected else ""

    def _core(self, address: PciAddress) -> Iterator[tuple[str, str]]:
        names = (*_CORE, "serial_number") if self.identifying else _CORE
        for name in names:
            text = self._text(address, name)
            if text:
                yield name, f"{text}\n"

    def _driver_attributes(
        self, address: PciAddress, pf: PciFunction | None = None
    ) -> tuple[AttributeSpec, ...]:
        """Return the attributes of a driver, if the function or its PF is named."""
        named = {address} if pf is None else {address, pf.address}
        if named.isdisjoint(self.with_drivers):
            return ()
        directory = self._directory(address)
        # VFs that have no driver show what the driver of their PF makes.
        driver = self.host.functions[address].driver
        # No signal ends a read that blocks in the driver: its thread stays behind.
        reading = deadlines.begin(lambda: tuple(_files(directory)))
        if not futures.wait([reading], _ANSWER_SECONDS).done:
            LOG.warning("%s does not answer; its attributes are not recorded", address)
            return ()
        try:
            found = reading.result()
        except OSError as error:
            LOG.warning("%s: its attributes are not recorded: %s", address, error)
            return ()
        return tuple(
            AttributeSpec(name, text, stays=not driver)
            for name, text in found
            if self.identifying or not _IDENTIFYING.search(name)
        )

    def _text(self, address: PciAddress, name: str) -> str:
        with contextlib.suppress(HostStepFailed):
            return attributes.read_text(f"{self._directory(address)}/{name}") or ""
        return ""

    def _directory(self, address: PciAddress) -> str:
        return os.path.join(self.root, functions.DEVICES, str(address))


def record_host(
    root: str = "/",
    with_drivers: Collection[PciAddress] = (),
    *,
    identifying: bool = False,
) -> HostSpec:
    """Return the specification of a host: its PCI tree, IOMMU groups and NUMA nodes.

    It has the present VFs as made at boot, no mediated devices, and of their parents
    the capacity that is free. A disk, an interface or a display that the host uses is
    used on the simulated one as well, in another way. FPGA regions, disks of NVMe
    subsystems with several paths, and vGPUs are not recorded.

    :param root: the parent directory of ``/sys`` and ``/proc``.
    :param with_drivers: functions whose attributes made by their drivers are read, with
        those of the VFs of a PF. The reader knows that reading them has no effect.
    :param identifying: record serial numbers and such names too.
    :raises HostStepFailed: the kernel refuses a read that the record needs.
    """
    host = pci.scan(root)
    for name, error in host.unreadable.items():
        LOG.warning("%s is not recorded: %s", name, error)
    blocks, networks, displays = (usage.Uses(host.functions) for _ in range(3))
    usage.note_disks(root, blocks)
    usage.note_interfaces(root, host.netdevs, networks)
    usage.note_displays(root, host.functions, displays)
    devices = {
        address: tuple(
            each if identifying else _without_serial(each)
            for each in _nested(root, found, is_up=address in networks.found)
        )
        for address, found in _by_owner(root).items()
    }
    recorder = _Recorder(
        root,
        host,
        pci.read_parents(root, host.functions),
        devices,
        frozenset(displays.found),
        with_drivers,
        identifying,
    )
    sources = (_source(devices.get(address, ())) for address in sorted(blocks.found))
    virtual = [name for name in mdev.parents(root) if ":" not in name]
    return HostSpec(
        functions=tuple(
            recorder.function(address)
            for address, function in host.functions.items()
            if function.physfn is None
        ),
        nodes=tuple(_nodes(root)),
        iommu=vfio.iommu_on(root),
        vfio=vfio.has_driver(root, "vfio-pci"),
        mounts=(
            "proc /proc proc rw 0 0",
            *(f"/dev/{name} /recorded ext4 rw 0 0" for name in sources if name),
        ),
        mdev_parents=tuple(filter(None, map(recorder.mdev_parent, virtual))),
    )


def _own_driver(function: PciFunction) -> str:
    """Return the host driver of a function; '' for none, and for a VFIO driver."""
    driver = function.driver or ""
    return "" if is_vfio_driver(driver) else driver


def _reserved(group: IommuGroup) -> tuple[str, ...]:
    """Return lines of ``reserved_regions``, without the one that each group has."""
    return tuple(
        f"0x{start:016x} 0x{end:016x} {kind}"
        for start, end, kind in group.reserved
        if kind != "msi"
    )


def _interface(devices: Iterable[ClassDeviceSpec]) -> str:
    """Return the name of the network interface of a function; '': it has none."""
    return next((each.name for each in devices if each.subsystem == "net"), "")


def _files(directory: str) -> Iterator[tuple[str, str]]:
    """Yield the attributes that a driver makes, with those in its groups."""
    for entry in sorted(os.scandir(directory), key=lambda each: each.name):
        if entry.is_dir(follow_symlinks=False):
            below = sorted(os.scandir(entry.path), key=lambda each: each.name)
            # One with directories or an event file is a class or a device.
            files = {e.name for e in below if e.is_file(follow_symlinks=False)}
            is_group = len(files) == len(below) and "uevent" not in files
            if is_group and entry.name not in _NO_GROUP_OF_THE_DRIVER:
                for each in below:
                    yield from _file(f"{entry.name}/{each.name}", each)
        elif not _NOT_THE_DRIVERS.fullmatch(entry.name):
            yield from _file(entry.name, entry)


def _file(name: str, entry: os.DirEntry[str]) -> Iterator[tuple[str, str]]:
    """Yield an attribute if it can be read and is text."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        mode = entry.stat(follow_symlinks=False).st_mode
        if not stat.S_ISREG(mode) or not mode & stat.S_IRUSR:
            return
        with open(entry.path, "rb", buffering=0) as file:
            data = file.read(_PAGE)
        text = (data or b"").decode().removesuffix("\n")
        if "\0" not in text:
            yield name, text


def _by_owner(root: str) -> dict[PciAddress, list[tuple[str, ClassDevice]]]:
    """Return the class devices of each function, each with its class."""
    found: dict[PciAddress, list[tuple[str, ClassDevice]]] = {}
    for subsystem in _CLASS_ATTRIBUTES:
        for device in class_devices(root, f"sys/class/{subsystem}"):
            if device.owner is not None:
                found.setdefault(device.owner, []).append((subsystem, device))
    return found


def _nested(
    root: str, found: list[tuple[str, ClassDevice]], *, is_up: bool, above: str = ""
) -> Iterator[ClassDeviceSpec]:
    """Yield the devices directly below one of them, or below the function."""
    names = {device.name for _, device in found}
    for subsystem, device in found:
        nearest = next((n for n in reversed(device.ancestors) if n in names), "")
        if nearest == above and device.name != above:
            yield ClassDeviceSpec(
                subsystem,
                device.name,
                tuple(_class_attributes(subsystem, device, is_up=is_up)),
                tuple(_nested(root, found, is_up=is_up, above=device.name)),
            )


def _class_attributes(
    subsystem: str, device: ClassDevice, *, is_up: bool
) -> Iterator[tuple[str, str]]:
    for name in _CLASS_ATTRIBUTES[subsystem]:
        text = attributes.read_text(f"{device.path}/{name}")
        if text is None:
            continue
        if name == "flags" and is_up:
            # IFF_UP: the host may use an interface in another way.
            text = hex(int(text, 16) | 1)
        yield name, text
        if name == "dev":
            major, _, minor = text.partition(":")
            place = "dri/" if subsystem == "drm" else ""
            yield (
                "uevent",
                f"MAJOR={major}\nMINOR={minor}\nDEVNAME={place}{device.name}",
            )


def _without_serial(device: ClassDeviceSpec) -> ClassDeviceSpec:
    kept = tuple(each for each in device.attributes if each[0] != "serial")
    return dataclasses.replace(device, attributes=kept)


def _source(devices: Iterable[ClassDeviceSpec]) -> str:
    """Return the name of a partition or disk of a function; '': it has none."""
    for each in devices:
        below = _source(each.children)
        if below or each.subsystem == "block":
            return below or each.name
    return ""


def _nodes(root: str) -> Iterator[NodeSpec]:
    if not os.path.isdir(os.path.join(root, numa.NODES)):
        return
    cells = {cell.id: cell for cell in numa.read_topology(root).cells}
    for number in range(max(cells, default=-1) + 1):
        yield _node(cells.get(number) or NUMACell(number), len(cells))


def _node(cell: NUMACell, count: int) -> NodeSpec:
    distances = tuple(distance for _, distance in cell.distances)
    return NodeSpec(
        ",".join(map(str, sorted(cell.cpuset))),
        cell.memory,
        -1 if cell.socket is None else cell.socket,
        max(map(len, cell.siblings), default=1),
        distances if len(distances) == count else (),
        tuple((pages.size_kb, pages.total) for pages in cell.mempages[1:]),
    )
