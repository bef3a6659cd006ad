# SPDX-License-Identifier: Apache-2.0

"""Functions that drivers register with VFIO (drivers/vfio/vfio_main.c, group.c)."""

from __future__ import annotations

import errno
import itertools
from typing import Final

from os_acc.testing import functions, holders
from os_acc.testing.tree import PRIVATE, Transaction

_REGISTERED: Final = f"{PRIVATE}/vfio"
_DEVICES: Final = "sys/class/vfio-dev"
_CLASS: Final = "sys/devices/virtual/vfio"
_GROUPS: Final = "sys/class/vfio"
_NODES: Final = "vfio/devices"


def boot(tree: Transaction, *, cdev: bool, groups: bool) -> None:
    """Load VFIO, and iommufd if it makes character devices of devices."""
    tree.put("dev/vfio/vfio", "", 0o666)
    if groups:
        tree.mkdir(_GROUPS)
    if cdev:
        tree.put("dev/iommu", "", 0o660)


def register(tree: Transaction, address: str) -> int:
    """Do as vfio_pci_core_register_device(); return 0 or its error number."""
    group = functions.group_of(tree, address)
    if group is None or functions.spec(tree, address).is_bridge:
        return errno.EINVAL
    if functions.vfs(tree, address):
        return errno.EBUSY
    show_group(tree, group)
    if not is_registered(tree, address):
        tree.put(f"{_REGISTERED}/{address}", "")
        show(tree, functions.place(tree, address))
    return 0


def unregister(tree: Transaction, address: str) -> None:
    """Do as vfio_unregister_group_dev(): the node of the group ends with the last."""
    group = functions.group_of(tree, address)
    if group is None or not is_registered(tree, address):
        return
    tree.drop(f"{_REGISTERED}/{address}")
    hide(tree, functions.place(tree, address))
    if any(is_registered(tree, other) for other in functions.members(tree, group)):
        return
    hide_group(tree, group)
    holders.chown(tree, group, back=True)


def show_group(tree: Transaction, group: object) -> None:
    """Add the node of an IOMMU group, on a kernel that has such nodes."""
    if has_groups(tree) and not tree.exists(f"dev/vfio/{group}"):
        tree.put(f"dev/vfio/{group}", "", 0o600)
        tree.put(f"{_CLASS}/{group}/dev", f"511:{group}\n")
        tree.link(f"{_GROUPS}/{group}", f"{_CLASS}/{group}")


def hide_group(tree: Transaction, group: object) -> None:
    """Remove the node of an IOMMU group."""
    for path in ("dev/vfio", _GROUPS, _CLASS):
        tree.drop(f"{path}/{group}")


def show(tree: Transaction, place: str) -> None:
    """Add the VFIO device of a function, or of a mediated device, to its directory.

    Documentation/ABI/testing/sysfs-devices-vfio-dev. With iommufd it has a node
    (vfio_device_devnode() in drivers/vfio/device_cdev.c).
    """
    known = set(tree.list(_DEVICES))
    name = next(each for n in itertools.count() if (each := f"vfio{n}") not in known)
    tree.mkdir(f"{place}/vfio-dev/{name}")
    tree.link(f"{_DEVICES}/{name}", f"{place}/vfio-dev/{name}")
    if has_iommufd(tree):
        number, node = name.removeprefix("vfio"), f"{_NODES}/{name}"
        uevent = f"MAJOR=510\nMINOR={number}\nDEVNAME={node}\n"
        tree.put(f"{place}/vfio-dev/{name}/dev", f"510:{number}\n")
        tree.put(f"{place}/vfio-dev/{name}/uevent", uevent)
        tree.put(f"dev/{node}", "", 0o600)


def hide(tree: Transaction, place: str) -> None:
    """Remove the VFIO device from a directory."""
    for name in tree.list(f"{place}/vfio-dev"):
        tree.drop(f"{_DEVICES}/{name}")
        tree.drop(f"dev/{_NODES}/{name}")
        holders.mark_deleted(tree, f"/dev/{_NODES}/{name}")
    tree.drop(f"{place}/vfio-dev")


def leave(tree: Transaction, place: str) -> None:
    """Begin as vfio_unregister_group_dev(), which may then wait for a holder.

    From Linux 6.6 on, which has iommufd, the VFIO device goes first.
    """
    if has_iommufd(tree):
        hide(tree, place)


def has_groups(tree: Transaction) -> bool:
    """Return whether VFIO makes character devices of IOMMU groups."""
    return tree.exists(_GROUPS)


def has_iommufd(tree: Transaction) -> bool:
    """Return whether VFIO makes character devices of devices."""
    return tree.exists("dev/iommu")


def is_registered(tree: Transaction, address: str) -> bool:
    """Return whether a guest can have a function."""
    return tree.exists(f"{_REGISTERED}/{address}")


def forget(tree: Transaction) -> None:
    """End all registrations for a reboot."""
    tree.drop(_REGISTERED)
