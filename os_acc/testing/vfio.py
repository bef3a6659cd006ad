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


def register(tree: Transaction, address: str) -> int:
    """Do as vfio_pci_core_register_device(); return 0 or its error number."""
    group = functions.group_of(tree, address)
    if group is None or functions.spec(tree, address).is_bridge:
        return errno.EINVAL
    if functions.vfs(tree, address):
        return errno.EBUSY
    if not tree.exists(f"dev/vfio/{group}"):
        tree.put(f"dev/vfio/{group}", "", 0o600)
        tree.put(f"{_CLASS}/{group}/dev", f"511:{group}\n")
        tree.link(f"sys/class/vfio/{group}", f"{_CLASS}/{group}")
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
    tree.drop(f"dev/vfio/{group}")
    tree.drop(f"sys/class/vfio/{group}")
    tree.drop(f"{_CLASS}/{group}")
    holders.chown(tree, group, back=True)


def show(tree: Transaction, place: str) -> None:
    """Add the VFIO device of a function, or of a mediated device, to its directory.

    Documentation/ABI/testing/sysfs-devices-vfio-dev.
    """
    known = set(tree.list(_DEVICES))
    name = next(each for n in itertools.count() if (each := f"vfio{n}") not in known)
    tree.mkdir(f"{place}/vfio-dev/{name}")
    tree.link(f"{_DEVICES}/{name}", f"{place}/vfio-dev/{name}")


def hide(tree: Transaction, place: str) -> None:
    """Remove the VFIO device from a directory."""
    for name in tree.list(f"{place}/vfio-dev"):
        tree.drop(f"{_DEVICES}/{name}")
    tree.drop(f"{place}/vfio-dev")


def is_registered(tree: Transaction, address: str) -> bool:
    """Return whether a guest can have a function."""
    return tree.exists(f"{_REGISTERED}/{address}")


def forget(tree: Transaction) -> None:
    """End all registrations for a reboot."""
    tree.drop(_REGISTERED)
