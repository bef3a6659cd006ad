# SPDX-License-Identifier: Apache-2.0

"""Read the facts of a scan with pyudev, as its documentation shows."""

from __future__ import annotations

import dataclasses
import os

import pyudev

from benchmarks import measure
from os_acc.host.pci import Host
from os_acc.objects.pci import PciFunction


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """One function, as texts."""

    address: str
    ids: str
    subsystem_ids: str
    revision: str
    class_code: str
    driver: str | None
    group: str | None
    numa_node: str | None
    reset_methods: str | None
    physfn: str | None
    total_vfs: str | None
    vfs: frozenset[str]


def facts_work(scanned: Host) -> measure.Work[list[Facts]]:
    """Return the work that reads all facts of a scan; they have to be equal."""
    expected = {_expected(each) for each in scanned.functions.values()}

    def check(found: list[Facts]) -> None:
        different = sorted(expected ^ set(found), key=lambda each: each.address)
        assert not different, f"pyudev finds something else: {different[:2]}"
        assert len(found) == len(expected), "pyudev finds something twice"

    return measure.Work(_facts, check)


def names_work(scanned: Host) -> measure.Work[list[str]]:
    """Return the work that lists the functions, without their facts."""
    expected = sorted(str(address) for address in scanned.functions)

    def check(found: list[str]) -> None:
        assert sorted(found) == expected, "pyudev finds something else"

    return measure.Work(_names, check)


def _names() -> list[str]:
    context = pyudev.Context()
    return [device.sys_name for device in context.list_devices(subsystem="pci")]


def _facts() -> list[Facts]:
    context = pyudev.Context()
    return [_of(device) for device in context.list_devices(subsystem="pci")]


def _of(device: pyudev.Device) -> Facts:
    properties, attributes = device.properties, device.attributes
    total_vfs = _attribute(attributes, "sriov_totalvfs")
    # libudev follows the links driver and subsystem, and no others.
    path = device.sys_path
    _attribute(attributes, "serial_number")
    return Facts(
        address=device.sys_name,
        ids=properties["PCI_ID"],
        subsystem_ids=properties["PCI_SUBSYS_ID"],
        class_code=properties["PCI_CLASS"],
        revision=attributes.asstring("revision"),
        driver=device.driver,
        group=_link(path, "iommu_group"),
        numa_node=_attribute(attributes, "numa_node"),
        reset_methods=_attribute(attributes, "reset_method"),
        physfn=_link(path, "physfn"),
        total_vfs=total_vfs,
        vfs=_vfs(path) if total_vfs else frozenset(),
    )


def _attribute(attributes: pyudev.Attributes, name: str) -> str | None:
    try:
        return str(attributes.asstring(name))
    except KeyError:
        return None


def _link(path: str, name: str) -> str | None:
    try:
        return os.path.basename(os.readlink(os.path.join(path, name)))
    except FileNotFoundError:
        return None


def _vfs(path: str) -> frozenset[str]:
    found = (_link(path, name) for name in os.listdir(path) if name[:6] == "virtfn")
    return frozenset(each for each in found if each is not None)


def _expected(function: PciFunction) -> Facts:
    identity = function.identity
    node, group = function.numa_node, function.iommu_group
    return Facts(
        address=str(function.address),
        ids=f"{identity.vendor:04X}:{identity.product:04X}",
        subsystem_ids=f"{identity.subsystem_vendor:04X}"
        f":{identity.subsystem_product:04X}",
        class_code=f"{function.class_code:04X}",
        revision=f"0x{identity.revision:02x}",
        driver=function.driver,
        group=None if group is None else str(group),
        numa_node=str(-1 if node is None else node),
        reset_methods=" ".join(function.reset_methods) or None,
        physfn=None if function.physfn is None else str(function.physfn),
        total_vfs=str(function.total_vfs) if function.total_vfs else None,
        vfs=frozenset(str(each) for each in function.vfs),
    )
