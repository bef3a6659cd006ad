# SPDX-License-Identifier: Apache-2.0

"""Reset methods, and resets (drivers/pci/pci.c)."""

from __future__ import annotations

import errno

from os_acc.privsep.kernel import Kernel
from os_acc.testing import drivers, functions, nvme_resources, vfio
from os_acc.testing.drivers import refuse
from os_acc.testing.tree import Transaction


class HotResets(Kernel):
    """The hot resets of VFIO; each is logged as a write of the group's node."""

    def hot_reset(self, group: int, function: str) -> None:
        if number := self.probe_vfio_group(group):
            raise refuse(number, f"/dev/vfio/{group}")
        self.write(self.path("dev/vfio", str(group)), function)


def hot_reset(tree: Transaction, address: str, _text: str) -> None:
    """Do as vfio_pci_ioctl_pci_hot_reset() with the group of a function."""
    drivers.check_open(tree, address)
    group = functions.group_of(tree, address)
    together = _together(tree, address)
    specs = [functions.spec(tree, each) for each in together]
    if any(each.no_bus_reset or not each.parent for each in specs):
        raise refuse(errno.ENODEV, address)
    for each in together:
        if functions.group_of(tree, each) != group or not vfio.is_registered(
            tree, each
        ):
            raise refuse(errno.EINVAL, each)


def reset(tree: Transaction, address: str, text: str) -> None:
    """Do as reset_store()."""
    path = functions.place(tree, address)
    if text.strip() != "1":
        raise refuse(errno.EINVAL, address)
    methods = tree.read(f"{path}/reset_method").split()
    # pci_parent_bus_reset(): the method of a card's first function is as old as the
    # function, which was alone on the bus when the kernel found it.
    if set(methods) <= {"bus"} and (not methods or len(_together(tree, address)) > 1):
        raise refuse(errno.ENOTTY, address)
    nvme_resources.reset(tree, address)


def _together(tree: Transaction, address: str) -> list[str]:
    """Return the functions of a bus."""
    bus, known = address.rpartition(":")[0], tree.list(functions.DEVICES)
    return [each for each in known if each.rpartition(":")[0] == bus]


def set_methods(tree: Transaction, address: str, text: str) -> None:
    """Do as reset_method_store(): some supported methods, none, or default."""
    path = functions.place(tree, address)
    supported = functions.spec(tree, address).reset_methods
    wanted = supported if text.strip() == "default" else tuple(text.split())
    if not set(wanted) <= set(supported):
        raise refuse(errno.EINVAL, address)
    line = " ".join(wanted)
    tree.put(f"{path}/reset_method", f"{line}\n" if line else "", 0o644)
