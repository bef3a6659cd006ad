# SPDX-License-Identifier: Apache-2.0

"""IOMMU groups, and what VFIO requires of a device."""

from __future__ import annotations

import fnmatch
import functools
import os
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Final

from os_acc.exception import (
    HostStepFailed,
    OsAccError,
    StepReason,
    is_exhaustion,
)
from os_acc.host.attributes import (
    class_devices,
    function_path,
    mode,
    names,
    number,
    read_lines,
    read_text,
    unreadable,
)
from os_acc.objects.drivers import NVIDIA, is_vfio_driver
from os_acc.objects.pci import IommuGroup, PciAddress, PciFunction, function_named

GROUPS = "sys/kernel/iommu_groups"
# The group name that drivers/vfio/group.c assigns without an IOMMU.
_NO_IOMMU = "vfio-noiommu"


def iommu_on(root: str) -> bool:
    """Return whether the kernel has any IOMMU group.

    :raises HostStepFailed: the kernel reports an error.
    """
    return bool(names(os.path.join(root, GROUPS)))


def read_iommu_groups(
    root: str, unreadable: MutableMapping[str, OsAccError]
) -> dict[int, IommuGroup]:
    """Return all groups by number; add errors of groups to ``unreadable``.

    :raises HostStepFailed: the list of numbers cannot be read.
    """
    groups = {}
    for name in names(os.path.join(root, GROUPS)):
        try:
            group = read_iommu_group(root, number(name, GROUPS))
        except HostStepFailed as error:
            if is_exhaustion(error):
                raise
            unreadable[f"iommu group {name}"] = error
            continue
        if group is not None:
            groups[group.number] = group
    return dict(sorted(groups.items()))


def read_iommu_group(root: str, group: int) -> IommuGroup | None:
    """Return the current state of one group; None if it does not exist.

    Members other than PCI functions are omitted; VFIO checks those.

    :raises HostStepFailed: the kernel reports an error or malformed data.
    """
    path = f"{os.path.join(root, GROUPS)}/{group}"
    reserved = read_text(f"{path}/reserved_regions") or ""
    members = read_iommu_members(root, group)
    # The kernel removes a group with its last device.
    if not members:
        return None
    return IommuGroup(
        number=group,
        members=members,
        reserved=_regions(reserved),
        # Few groups have a name, so the file is rarely opened.
        unsafe=bool(mode(f"{path}/name")) and read_text(f"{path}/name") == _NO_IOMMU,
    )


def read_iommu_members(root: str, group: int) -> tuple[PciAddress, ...]:
    """Return the PCI functions of a group, sorted; none if it does not exist.

    :raises HostStepFailed: the kernel reports an error.
    """
    found = names(f"{root}/{GROUPS}/{group}/devices")
    members = tuple(filter(None, map(function_named, found)))
    return tuple(sorted(members)) if len(members) > 1 else members


# Most groups have the same regions, those of the host's interrupt controller.
@functools.lru_cache(256)
def _regions(text: str) -> tuple[tuple[int, int, str], ...]:
    found, what = [], "reserved_regions"
    for line in filter(None, text.split("\n")):
        match line.split():
            case [start, end, kind]:
                found.append((number(start, what), number(end, what), kind))
            case _:
                raise HostStepFailed(
                    f"{what} contains {line[:80]!r}, expected start, end and type"
                )
    return tuple(found)


# vfio_pci_dev_in_denylist() in drivers/vfio/pci/vfio_pci.c: known errata allow
# a guest to harm the host. PF and VF of QAT C3xxx, C62x and DH895xCC; DSA and
# IAX of Sapphire Rapids (since Linux 6.9).
_DENYLISTED = (0x19E2, 0x19E3, 0x37C8, 0x37C9, 0x0435, 0x0443, 0x0B25, 0x0CFE)
_DENYLIST = frozenset((0x8086, product) for product in _DENYLISTED)
# Drivers that set driver_managed_dma: they perform no DMA of their own, so VFIO
# accepts them beside a guest's device (drivers/pci/pcie/portdrv.c,
# drivers/pci/hotplug/shpchp_core.c, drivers/pci/pci-stub.c).
_TOLERATED = frozenset({"pcieport", "shpchp", "pci-stub"})
_OFFERED = "vfio-dev"
# In modules.alias. A variant of vfio-pci names its devices by such aliases
# (``PCI_DRIVER_OVERRIDE_DEVICE_VFIO`` in include/linux/pci.h, ``do_pci_entry()`` in
# scripts/mod/file2alias.c), and vfio-pci names all. No module is loaded for them, and
# no probe chooses a driver by them: user space does
# (Documentation/driver-api/vfio.rst).
_PREFIX: Final = "alias vfio_pci:"


def require_drivers(root: str, drivers: Iterable[str]) -> None:
    """Check that the kernel has VFIO drivers.

    :raises HostStepFailed: VFIO: one is missing.
    """
    for driver in sorted(drivers):
        if not has_driver(root, driver):
            raise HostStepFailed(
                f"the kernel has no {driver} driver",
                reason=StepReason.VFIO,
                hint=load_hint(driver),
            )


def load_hint(driver: str) -> str:
    """Return how a missing VFIO driver is loaded."""
    return f"run 'modprobe {driver}', and load it at boot"


def has_driver(root: str, name: str) -> bool:
    """Return whether the kernel has a PCI driver of this name."""
    return os.path.isdir(os.path.join(root, "sys/bus/pci/drivers", name))


def drivers(root: str) -> list[str]:
    """Return the names of the kernel's PCI drivers.

    :raises HostStepFailed: they cannot be listed.
    """
    return names(os.path.join(root, "sys/bus/pci/drivers"))


def nodes(root: str) -> frozenset[str]:
    """Return the IOMMU groups in ``/dev/vfio``.

    VFIO has a function of each, or waits until a process closes one.

    :raises HostStepFailed: the kernel reports an error.
    """
    return frozenset(names(os.path.join(root, "dev/vfio")))


def cdev(root: str, name: str) -> str | None:
    """Return the node through which iommufd opens a device; None: it has none.

    Documentation/ABI/testing/sysfs-devices-vfio-dev. The kernel has the attribute
    ``dev`` with CONFIG_VFIO_DEVICE_CDEV only (Documentation/driver-api/vfio.rst, "VFIO
    Device cdev"). A bind to a driver may give the device another number.

    :param name: of a function, or the UUID of a mediated device.
    """
    place = f"{root}/sys/bus/{'pci' if ':' in name else 'mdev'}/devices/{name}"
    try:
        (device,) = os.listdir(f"{place}/{_OFFERED}")
        os.stat(f"{place}/{_OFFERED}/{device}/dev")
        os.stat(f"{root}/dev/vfio/devices/{device}")
    except (OSError, ValueError):
        # Also of a device that leaves the host at this moment.
        return None
    return f"/dev/vfio/devices/{device}"


def denylisted(root: str, function: PciFunction) -> bool:
    """Return whether vfio-pci rejects this device for its errata.

    :raises HostStepFailed: vfio-pci's module parameter cannot be read.
    """
    identity = function.identity
    if (identity.vendor, identity.product) not in _DENYLIST:
        return False
    path = os.path.join(root, "sys/module/vfio_pci/parameters/disable_denylist")
    return read_text(path) != "Y"


def is_offered(root: str, address: PciAddress, driver: str | None) -> bool:
    """Return whether a function's driver offers it to guests (Linux 6.1 and later).

    Documentation/ABI/testing/sysfs-devices-vfio-dev. libvirt accepts a function with
    ``managed='no'`` by this, on any driver. NVIDIA's driver is asked for the type of
    the vGPU instead (:mod:`.host.mdev`): no document tells when it has registered a VF.
    """
    return driver != NVIDIA and os.path.isdir(function_path(root, address, _OFFERED))


def offered_functions(
    root: str, functions: Mapping[PciAddress, PciFunction]
) -> frozenset[PciAddress]:
    """Return the functions that drivers offer to guests; see :func:`is_offered`.

    :raises HostStepFailed: the class exists and cannot be read.
    """
    owners = (
        functions.get(each.owner)
        for each in class_devices(root, f"sys/class/{_OFFERED}")
        # A mediated device is below a function, and is not that function.
        if each.owner is not None and each.ancestors[-2:] == (str(each.owner), _OFFERED)
    )
    return frozenset(
        each.address for each in owners if each is not None and each.driver != NVIDIA
    )


def leaves_group_viable(driver: str | None) -> bool:
    """Return whether VFIO can open the IOMMU group of a function with this driver.

    A group is viable if each member is unbound, bound to VFIO, or bound to a
    driver that performs no DMA (Documentation/driver-api/vfio.rst, "group
    viability"). Neither its class nor its header type matters.
    """
    return driver is None or driver in _TOLERATED or is_vfio_driver(driver)


def best_vfio_module(root: str, function: PciFunction) -> str | None:
    """Return the module whose alias fits a function best; None: no alias does.

    The alias with the fewest wildcards is the best one, as for libvirt; of equals the
    first.

    :raises HostStepFailed: ``modules.alias`` cannot be read.
    """
    release = read_text(os.path.join(root, "proc/sys/kernel/osrelease"))
    if not release:
        return None
    name = _name(function)
    fitting = [
        (alias.count("*"), number, module)
        for number, (alias, module) in enumerate(_aliases(root, release))
        if fnmatch.fnmatchcase(name, alias)
    ]
    return min(fitting)[2] if fitting else None


def _aliases(root: str, release: str) -> tuple[tuple[str, str], ...]:
    path = os.path.join(root, "lib/modules", release, "modules.alias")
    try:
        state = os.stat(path)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise unreadable(path, error) from error
    return _parsed(path, state.st_ino, state.st_size, state.st_mtime_ns)


# The file has some 30,000 lines, and depmod replaces it.
@functools.lru_cache(4)
def _parsed(
    path: str, _node: int, _size: int, _time: int
) -> tuple[tuple[str, str], ...]:
    parts = (line.split() for line in read_lines(path) if line.startswith(_PREFIX))
    return tuple((each[1], each[2]) for each in parts if len(each) == 3)


def _name(function: PciFunction) -> str:
    """Return a function's modalias (modalias_show() in drivers/pci/pci-sysfs.c)."""
    identity, code = function.identity, function.class_code
    return (
        f"vfio_pci:v{identity.vendor:08X}d{identity.product:08X}"
        f"sv{identity.subsystem_vendor:08X}sd{identity.subsystem_product:08X}"
        f"bc{code >> 16:02X}sc{code >> 8 & 0xFF:02X}i{code & 0xFF:02X}"
    )
