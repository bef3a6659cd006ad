# SPDX-License-Identifier: Apache-2.0

"""The PCI functions of the host: a scan of all, or a reread of one."""

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
    """Return the parent of each function: a bridge, or an endpoint with a bus.

    A function on a root bus, or a removed one, has none. A VF is a sibling of its
    PF, not a child (pci_iov_add_virtfn() in drivers/pci/iov.c).

    :raises HostStepFailed: the kernel reports an error.
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

    Objects removed during the scan are omitted. Unreadable objects are omitted and
    reported in ``Host.unreadable``, so that a faulty device does not affect others.

    :raises HostStepFailed: the names of the devices cannot be read.
    """
    unreadable: dict[str, OsAccError] = {}
    return Host(
        functions=MappingProxyType(read_functions(root, unreadable)),
        groups=MappingProxyType(iommu.read_groups(root, unreadable)),
        netdevs=MappingProxyType(_netdevs(root)),
        unreadable=MappingProxyType(unreadable),
    )


def has_bus(root: str, address: PciAddress) -> bool:
    """Return whether a function has its own PCI bus behind it, like VMD.

    VMD has the class of a storage controller (drivers/pci/controller/vmd.c).
    """
    return any(
        _HOST_BRIDGE.fullmatch(name)
        for name in names(os.path.join(root, DEVICES, str(address)))
    )


def mdev_types(root: str, address: PciAddress) -> frozenset[str]:
    """Return the types of mediated devices that a function's driver offers.

    Documentation/ABI/testing/sysfs-bus-vfio-mdev.

    :raises HostStepFailed: they exist and cannot be listed.
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
