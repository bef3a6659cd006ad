# SPDX-License-Identifier: Apache-2.0

"""Writes of a function's attributes: SR-IOV (drivers/pci/iov.c) and resets (pci.c)."""

from __future__ import annotations

import errno
import string

from os_acc.testing import (
    dfl,
    drivers,
    functions,
    nodes,
    nvme_resources,
    vendor_attributes,
    vfio,
)
from os_acc.testing.specs import FunctionSpec, SriovSpec
from os_acc.testing.tree import Transaction, refuse


def set_numvfs(tree: Transaction, address: str, text: str) -> None:
    """Do as sriov_numvfs_store()."""
    path = functions.place(tree, address)
    wanted = _number(text, 0xFFFF)
    if wanted is None:
        raise refuse(errno.EINVAL, address)
    if wanted > int(tree.read(f"{path}/sriov_totalvfs")):
        raise refuse(errno.ERANGE, address)
    there = int(tree.read(f"{path}/sriov_numvfs"))
    if wanted == there:
        return
    name = drivers.bound(tree, address)
    if name is None or not drivers.load(tree, name).sriov:
        raise refuse(errno.ENOENT, address)
    if wanted == 0:
        remove_vfs(tree, address)
    elif there:
        raise refuse(errno.EBUSY, address)
    else:
        if name == dfl.DRIVER:
            dfl.check_released(tree, address, wanted)
        make_vfs(tree, functions.spec(tree, address), wanted)


def make_vfs(tree: Transaction, pf: FunctionSpec, wanted: int) -> None:
    """Add VFs as ``sriov_configure`` of the PF's driver."""
    path = functions.place(tree, pf.address)
    count = _granted(pf.sriov, wanted)
    groups = functions.numbers(tree)
    nvme_resources.make_vfs(tree, pf.address, count)
    for index in range(count):
        vf = pf.vf(index)
        functions.add(tree, vf, groups, pf=path)
        vf_path = functions.place(tree, vf.address)
        tree.link(f"{path}/virtfn{index}", vf_path)
        vendor_attributes.show(tree, vf.address, stay=True)
        drivers.attach(tree, vf.address)
    tree.put(f"{path}/sriov_numvfs", f"{count}\n", 0o644)


def remove_vfs(tree: Transaction, address: str) -> None:
    """Unbind and remove all VFs of a PF, one after the other.

    :raises Blocked: a process holds one; call this again after it has closed it.
    """
    path = functions.place(tree, address)
    pf = functions.spec(tree, address)
    for vf in functions.vfs(tree, address):
        tree.drop(f"{path}/virtfn{pf.vf_index(vf)}")
        drivers.detach(tree, vf)
        functions.remove(tree, vf)
    tree.put(f"{path}/sriov_numvfs", "0\n", 0o644)


def unbind(tree: Transaction, address: str, name: str) -> None:
    """Unbind a function; most drivers of a PF take its VFs with them.

    :raises Blocked: a process holds one; call this again after it has closed it.
    """
    function = functions.spec(tree, address)
    sriov = function.sriov
    own = drivers.bound(tree, address) == function.driver == name
    if sriov is not None and sriov.removed_with_driver and own:
        remove_vfs(tree, address)
    drivers.unbind(tree, address, name)


def set_autoprobe(tree: Transaction, address: str, text: str) -> None:
    """Do as sriov_drivers_autoprobe_store(), which parses as kstrtobool()."""
    path = functions.place(tree, address)
    word = text.strip().lower()
    if word[:1] in ("y", "t", "1") or word[:2] == "on":
        value = 1
    elif word[:1] in ("n", "f", "0") or word[:2] == "of":
        value = 0
    else:
        raise refuse(errno.EINVAL, address)
    tree.put(f"{path}/sriov_drivers_autoprobe", f"{value}\n", 0o644)


def _granted(sriov: SriovSpec | None, wanted: int) -> int:
    if sriov is None:
        return 0
    if sriov.makes_all:
        return sriov.total
    return wanted if sriov.limit is None else min(wanted, sriov.limit)


def _number(text: str, limit: int) -> int | None:
    """Parse as kstrtouint() with base 0: decimal, 0x, or octal after a zero."""
    digits = text.removesuffix("\n").lower()
    base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
    digits = digits.removeprefix("0x")
    if not digits or not set(digits) <= set(string.hexdigits):
        return None
    try:
        number = int(digits, base)
    except ValueError:
        return None
    return number if number <= limit else None


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


def set_node(tree: Transaction, address: str, text: str) -> None:
    """Do as numa_node_store() of drivers/pci/pci-sysfs.c.

    :raises OSError: EINVAL: no such node, or it is offline.
    """
    path = functions.place(tree, address)
    if text.strip() not in {"-1", *map(str, nodes.online(tree))}:
        raise refuse(errno.EINVAL, address)
    tree.put(f"{path}/numa_node", f"{text.strip()}\n", 0o644)
