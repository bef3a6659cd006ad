# SPDX-License-Identifier: Apache-2.0

"""The PCI functions of the host: all at once, or one again."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from os_acc.exception import OsAccError
from os_acc.host import iommu
from os_acc.host.attributes import link_target, names
from os_acc.host.class_devices import class_devices, nearest_function
from os_acc.host.function import (
    DEVICES,
    DriverBinding,
    read_binding,
    read_function,
    read_functions,
)
from os_acc.host.view import Host
from os_acc.objects.pci import PciAddress


def read_parents(
    root: str, addresses: Iterable[PciAddress]
) -> Mapping[PciAddress, PciAddress]:
    """What is right above each function: a bridge, or an endpoint with a bus.

    What is on a root bus has nothing above it, and what has vanished neither. A VF
    is beside its PF, not below it (pci_iov_add_virtfn() in drivers/pci/iov.c).

    :raises HostStepFailed: the kernel refuses to say.
    """
    found = {}
    for address in addresses:
        target = link_target(os.path.join(root, DEVICES, str(address)))
        above = nearest_function(target.split("/")[:-1]) if target else None
        if above is not None:
            found[address] = above
    return MappingProxyType(found)


__all__ = [
    "DriverBinding",
    "has_bus",
    "mdev_types",
    "read_binding",
    "read_function",
    "scan",
]

_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII)


def scan(root: str) -> Host:
    """Read every PCI function, IOMMU group and PCI network interface.

    What vanishes meanwhile is left out; what cannot be understood is left out
    and told in ``Host.unreadable``, so that one bad device stops no other.

    :raises HostStepFailed: not even the names of the devices can be read.
    """
    unreadable: dict[str, OsAccError] = {}
    return Host(
        functions=MappingProxyType(read_functions(root, unreadable)),
        groups=MappingProxyType(iommu.read_groups(root, unreadable)),
        netdevs=MappingProxyType(_netdevs(root)),
        unreadable=MappingProxyType(unreadable),
    )


def has_bus(root: str, address: PciAddress) -> bool:
    """Whether a function has a PCI bus of its own behind it, as VMD has.

    Its class is that of a storage controller (drivers/pci/controller/vmd.c).
    """
    return any(
        _HOST_BRIDGE.fullmatch(name)
        for name in names(os.path.join(root, DEVICES, str(address)))
    )


def mdev_types(root: str, address: PciAddress) -> frozenset[str]:
    """The types of mediated devices that a function's driver offers now.

    Documentation/ABI/testing/sysfs-bus-vfio-mdev.

    :raises HostStepFailed: they are there and cannot be listed.
    """
    return frozenset(
        names(os.path.join(root, DEVICES, str(address), "mdev_supported_types"))
    )


def _netdevs(root: str) -> dict[str, PciAddress]:
    return {
        device.name: device.owner
        for device in class_devices(root, "net")
        if device.owner is not None
    }
