# SPDX-License-Identifier: Apache-2.0

"""PCI functions that come and go in the tree, as the PCI core shows them."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterator

from os_acc.objects import pci
from os_acc.testing import nodes, records
from os_acc.testing.specs import ClassDeviceSpec, FunctionSpec
from os_acc.testing.tree import PRIVATE, Transaction, refuse

DEVICES = "sys/bus/pci/devices"
GROUPS = "sys/kernel/iommu_groups"
IOMMU = "sys/class/iommu/dmar0"
FUNCTIONS = f"{PRIVATE}/functions"
NO_OVERRIDE = "(null)\n"
_MSI_WINDOW = "0x00000000fee00000 0x00000000feefffff msi"


def place(tree: Transaction, address: str) -> str:
    """Return the directory of a function.

    :raises OSError: ENODEV: no such function.
    """
    path = tree.follow(f"{DEVICES}/{address}")
    if path is None:
        raise refuse(errno.ENODEV, address)
    return path


def numbers(tree: Transaction) -> Iterator[int] | None:
    """Return free numbers for IOMMU groups, lowest first; None without an IOMMU."""
    if not tree.exists(IOMMU):
        return None
    return (n for n in itertools.count() if not tree.exists(f"{GROUPS}/{n}"))


def group_of(tree: Transaction, address: str) -> int | None:
    """Return the IOMMU group of a function."""
    path = tree.follow(f"{place(tree, address)}/iommu_group")
    return None if path is None else int(os.path.basename(path))


def members(tree: Transaction, group: int) -> list[str]:
    """Return the functions in an IOMMU group."""
    return tree.list(f"{GROUPS}/{group}/devices")


def vfs(tree: Transaction, address: str) -> list[str]:
    """Return the existing VFs of a PF, in the order of their indexes."""
    numvfs = f"{place(tree, address)}/sriov_numvfs"
    if not tree.exists(numvfs):
        return []
    own = spec(tree, address)
    there = (own.vf_address(n) for n in range(int(tree.read(numvfs))))
    return [vf for vf in there if tree.exists(f"{DEVICES}/{vf}")]


def physfn(tree: Transaction, address: str) -> str | None:
    """Return the PF of a VF."""
    path = tree.follow(f"{place(tree, address)}/physfn")
    return None if path is None else os.path.basename(path)


def children(tree: Transaction, address: str) -> list[str]:
    """Return the functions directly below a bridge, without VFs."""
    plugged = (spec(tree, other) for other in tree.list(FUNCTIONS))
    return [other.address for other in plugged if other.parent == address]


def group_left(tree: Transaction, address: str) -> int | None:
    """Return the group of the functions that share that of a missing one."""
    there = filter(lambda a: tree.exists(f"{DEVICES}/{a}"), tree.list(FUNCTIONS))
    sharers = [other for other in there if spec(tree, other).group_of == address]
    return group_of(tree, sharers[0]) if sharers else None


def spec(tree: Transaction, address: str) -> FunctionSpec:
    """Return the specification of a function; of a VF, from its PF."""
    pf = physfn(tree, address)
    if pf is None:
        return records.load(FunctionSpec, tree.read(f"{FUNCTIONS}/{address}"))
    own = spec(tree, pf)
    return own.vf(own.vf_index(address))


def add(
    tree: Transaction,
    function: FunctionSpec,
    groups: Iterator[int] | None,
    pf: str | None = None,
    group: int | None = None,
) -> None:
    """Add a function to the tree.

    :param groups: free numbers for a new group; None without an IOMMU.
    :param pf: the directory of its PF, if it is a VF.
    :param group: the group that it joins, unless the specification names one.
    """
    address = function.address
    path = f"{_above(tree, function)}/{address}"
    for name, text in _attributes(function):
        tree.put(f"{path}/{name}", text)
    if nodes.are_known(tree):
        tree.put(f"{path}/numa_node", f"{function.numa_node}\n", 0o644)
    tree.put(f"{path}/driver_override", NO_OVERRIDE, 0o644)
    if function.reset_methods:
        tree.put(f"{path}/reset", "", 0o200)
        methods = " ".join(function.reset_methods)
        tree.put(f"{path}/reset_method", f"{methods}\n", 0o644)
    if function.sriov is not None:
        tree.put(f"{path}/sriov_totalvfs", f"{function.sriov.total}\n")
        tree.put(f"{path}/sriov_offset", f"{function.sriov.offset}\n")
        tree.put(f"{path}/sriov_stride", f"{function.sriov.stride}\n")
        tree.put(f"{path}/sriov_vf_device", f"{function.sriov.product:x}\n")
        tree.put(f"{path}/sriov_numvfs", "0\n", 0o644)
        tree.put(f"{path}/sriov_drivers_autoprobe", "1\n", 0o644)
    tree.link(f"{path}/subsystem", "sys/bus/pci")
    if pf is None:
        tree.put(f"{FUNCTIONS}/{address}", records.dump(function))
    else:
        tree.link(f"{path}/physfn", pf)
    if groups is not None and function.isolated:
        _join(tree, function, path, groups, group)
    # Last, so that no reader finds an incomplete function.
    tree.link(f"{DEVICES}/{address}", path)


def remove(tree: Transaction, address: str) -> None:
    """Remove an unbound function, and its group with the last function of that."""
    path, group = place(tree, address), group_of(tree, address)
    tree.drop(f"{DEVICES}/{address}")
    if group is not None:
        tree.drop(f"{GROUPS}/{group}/devices/{address}")
        if not members(tree, group):
            tree.drop(f"{GROUPS}/{group}")
    tree.drop(f"{FUNCTIONS}/{address}")
    tree.drop(path)


def _above(tree: Transaction, function: FunctionSpec) -> str:
    own = pci.PciAddress.parse(function.address)
    root_bus = f"pci{own.domain:04x}:{own.bus:02x}"
    if not function.parent:
        return f"sys/devices/{root_bus}"
    parent = pci.PciAddress.parse(function.parent)
    path = place(tree, str(parent))
    # A VMD endpoint is itself the host bridge of another domain.
    return path if parent.domain == own.domain else f"{path}/{root_bus}"


def _attributes(function: FunctionSpec) -> Iterator[tuple[str, str]]:
    vendor, product = function.vendor, function.product
    yield "vendor", f"0x{vendor:04x}\n"
    yield "device", f"0x{product:04x}\n"
    yield "subsystem_vendor", f"0x{function.subsystem_vendor:04x}\n"
    yield "subsystem_device", f"0x{function.subsystem_product:04x}\n"
    yield "class", f"0x{function.class_code:06x}\n"
    yield "revision", f"0x{function.revision:02x}\n"
    base, sub, interface = function.class_code.to_bytes(3, "big")
    yield (
        "modalias",
        f"pci:v{vendor:08X}d{product:08X}sv{function.subsystem_vendor:08X}"
        f"sd{function.subsystem_product:08X}bc{base:02X}sc{sub:02X}"
        f"i{interface:02X}\n",
    )
    if function.class_code >> 8 == 0x0300:
        yield "boot_vga", f"{function.boot_vga:d}\n"
    if function.is_bridge:
        bus = pci.PciAddress.parse(function.address).bus
        yield "secondary_bus_number", f"{bus + 1}\n"
    yield from function.attributes


def _join(
    tree: Transaction,
    function: FunctionSpec,
    path: str,
    groups: Iterator[int],
    group: int | None,
) -> None:
    if function.group_of:
        first = tree.exists(f"{DEVICES}/{function.group_of}")
        share = group_of if first else group_left
        group = share(tree, function.group_of)
    if group is None:
        group = next(groups)
        tree.put(f"{GROUPS}/{group}/type", "DMA-FQ\n", 0o644)
    lines = [*function.reserved, _MSI_WINDOW]
    with_others = f"{GROUPS}/{group}/reserved_regions"
    if tree.exists(with_others):
        lines = [*function.reserved, *tree.read(with_others).splitlines()]
    tree.put(with_others, "".join(f"{line}\n" for line in lines))
    tree.link(f"{GROUPS}/{group}/devices/{function.address}", path)
    tree.link(f"{path}/iommu_group", f"{GROUPS}/{group}")


def show_devices(
    tree: Transaction, above: str, devices: tuple[ClassDeviceSpec, ...]
) -> None:
    """Add the devices that a driver makes of a function."""
    for device in devices:
        path = f"{above}/{device.subsystem}/{device.name}"
        _show(tree, above, path, device)


def _show(tree: Transaction, above: str, path: str, device: ClassDeviceSpec) -> None:
    for name, text in device.attributes:
        tree.put(f"{path}/{name}", f"{text}\n")
    for child in device.children:
        # Below a class device the core puts no directory of the class
        # (get_device_parent() in drivers/base/core.c).
        _show(tree, path, f"{path}/{child.name}", child)
    if device.subsystem == "block":
        tree.mkdir(f"{path}/holders")
    tree.link(f"{path}/device", above)
    tree.link(f"{path}/subsystem", f"sys/class/{device.subsystem}")
    tree.link(f"sys/class/{device.subsystem}/{device.name}", path)


def hide_devices(
    tree: Transaction, above: str, devices: tuple[ClassDeviceSpec, ...]
) -> None:
    """Remove the devices that :func:`show_devices` added."""
    for device in devices:
        _unlist(tree, device)
        tree.drop(f"{above}/{device.subsystem}")


def _unlist(tree: Transaction, device: ClassDeviceSpec) -> None:
    tree.drop(f"sys/class/{device.subsystem}/{device.name}")
    for child in device.children:
        _unlist(tree, child)
