# SPDX-License-Identifier: Apache-2.0

"""Processes that hold functions open through VFIO, as QEMU does.

Clients inside the kernel have disks open exclusively, and leave no trace in the tree.
"""

from __future__ import annotations

import errno

from os_acc.testing import functions
from os_acc.testing.tree import PRIVATE, Transaction, refuse

HOLDS = f"{PRIVATE}/holds"
_CHOWNED = f"{PRIVATE}/chowned"
_CLAIMS, _LOST = f"{PRIVATE}/claims", f"{PRIVATE}/lost"
_BLOCK = "sys/class/block"
_USES = ("proc/self/mounts", "proc/swaps")
_NODES = f"{PRIVATE}/nodes"
# QEMU's own descriptors are about as many.
_FIRST_FD = 20


class Blocked(Exception):
    """The kernel waits until the process that holds a function closes it.

    The changes made so far remain.
    """


def hold(
    tree: Transaction, address: str, pid: int, command: str, *, iommufd: bool
) -> None:
    """Let a process open a function, through its group or through iommufd.

    :raises OSError: ENODEV: VFIO does not offer it so.
    """
    group = _group_of(tree, address)
    node = cdev(tree, address) if iommufd else f"dev/vfio/{group}"
    if not node or not tree.exists(node):
        raise refuse(errno.ENODEV, address)
    files = ["/dev/vfio/vfio", f"/{node}", "anon_inode:[vfio-device]"]
    if iommufd:
        files = ["/dev/iommu", f"/{node}"]
    _open(tree, f"{HOLDS}/{address}", pid, command, *files)


def _open(tree: Transaction, mark: str, pid: int, command: str, *targets: str) -> None:
    """Add a process with descriptors to ``/proc``, and note them in a file."""
    tree.put(f"proc/{pid}/comm", f"{command[:15]}\n")
    tree.put(f"proc/{pid}/cmdline", f"{command}\0")
    first = max(map(int, tree.list(f"proc/{pid}/fd")), default=_FIRST_FD - 1) + 1
    for fd, target in enumerate(targets, first):
        tree.link_text(f"proc/{pid}/fd/{fd}", target)
    tree.put(mark, f"{pid} {first} {len(targets)}")


def _close(tree: Transaction, mark: str) -> None:
    """Close noted descriptors, if any; the process ends with its last one."""
    if not tree.exists(mark):
        return
    pid, first, count = map(int, tree.read(mark).split())
    tree.drop(mark)
    for fd in range(first, first + count):
        tree.drop(f"proc/{pid}/fd/{fd}")
    if not tree.list(f"proc/{pid}/fd"):
        tree.drop(f"proc/{pid}")


def open_node(tree: Transaction, node: str, pid: int, command: str) -> None:
    """Let a process open a node of a driver on the host."""
    _open(tree, f"{_NODES}/{node}", pid, command, f"/dev/{node}")


def close_node(tree: Transaction, node: str) -> None:
    """Let the process close a node."""
    _close(tree, f"{_NODES}/{node}")


def has_node(tree: Transaction, node: str) -> bool:
    """Return whether a process has a node of a driver open."""
    return tree.exists(f"{_NODES}/{node}")


def claim(tree: Transaction, disk: str, client: str) -> None:
    """Let a client inside the kernel open a disk or a partition exclusively.

    :raises OSError: ENXIO: no such disk; EBUSY: it is claimed.
    """
    if not tree.exists(f"{_BLOCK}/{disk}"):
        raise refuse(errno.ENXIO, disk)
    if is_claimed(tree, disk):
        raise refuse(errno.EBUSY, disk)
    tree.put(f"{_CLAIMS}/{disk}", client)


def unclaim(tree: Transaction, disk: str) -> None:
    """Let the client close the disk."""
    tree.drop(f"{_CLAIMS}/{disk}")


def is_claimed(tree: Transaction, disk: str) -> bool:
    """Return whether the host has a disk, or a partition of it, open exclusively."""
    parts = [each for each in tree.list(f"{_BLOCK}/{disk}") if each.startswith(disk)]
    listed = (tree.read(path) for path in _USES if tree.exists(path))
    sources = {line.split()[0] for text in listed for line in text.splitlines()}
    return any(
        tree.exists(f"{_CLAIMS}/{name}")
        or tree.list(f"{_BLOCK}/{name}/holders")
        or f"/dev/{name}" in sources
        for name in (disk, *parts)
    )


def lose(tree: Transaction) -> None:
    """Take the disks that have left the host away from their clients."""
    for disk in tree.list(_CLAIMS):
        if not tree.exists(f"{_BLOCK}/{disk}"):
            tree.put(f"{_LOST}/{disk}", tree.read(f"{_CLAIMS}/{disk}"))
            tree.drop(f"{_CLAIMS}/{disk}")


def lost(tree: Transaction) -> tuple[str, ...]:
    """Return the clients that have lost their disks."""
    return tuple(tree.read(f"{_LOST}/{disk}") for disk in tree.list(_LOST))


def check_bind(tree: Transaction, address: str) -> None:
    """Do as vfio_df_ioctl_bind_iommufd() for a process that opens a device.

    :raises OSError: ENOENT: it has no node; EACCES: :func:`chown`; EBUSY: a process
        holds it (the kernel answers EINVAL for another iommufd); EPERM: a process holds
        another function of its group.
    """
    if not cdev(tree, address):
        raise refuse(errno.ENOENT, address)
    group = _group_of(tree, address)
    if group is not None and is_foreign(tree, group):
        raise refuse(errno.EACCES, address)
    if holds(tree, address):
        raise refuse(errno.EBUSY, address)
    if holds_group(tree, group):
        raise refuse(errno.EPERM, address)


def cdev(tree: Transaction, address: str) -> str:
    """Return the node of a function or mediated device for iommufd; '' for none."""
    for bus in (functions.DEVICES, "sys/bus/mdev/devices"):
        place = tree.follow(f"{bus}/{address}")
        for name in tree.list(f"{place}/vfio-dev") if place else ():
            if tree.exists(f"{place}/vfio-dev/{name}/dev"):
                return f"dev/vfio/devices/{name}"
    return ""


def mark_deleted(tree: Transaction, node: str) -> None:
    """Name an open node in ``/proc`` as d_path() does when it is gone."""
    for mark in tree.list(HOLDS):
        pid, first, count = map(int, tree.read(f"{HOLDS}/{mark}").split())
        for fd in range(first, first + count):
            if tree.follow(path := f"proc/{pid}/fd/{fd}") == node:
                tree.link_text(path, f"{node} (deleted)")


def let_go(tree: Transaction, address: str) -> None:
    """Let the process close a function."""
    _close(tree, f"{HOLDS}/{address}")


def holds(tree: Transaction, address: str) -> bool:
    """Return whether a process holds a function open."""
    return tree.exists(f"{HOLDS}/{address}")


def holds_group(tree: Transaction, group: int | None) -> bool:
    """Return whether a process holds any function of a group."""
    held = set(tree.list(HOLDS))
    if group is None or not held:
        return False
    return not held.isdisjoint(functions.members(tree, group))


def _group_of(tree: Transaction, address: str) -> int | None:
    """Return the IOMMU group of a function or mediated device."""
    if tree.exists(f"{functions.DEVICES}/{address}"):
        return functions.group_of(tree, address)
    place = tree.follow(f"sys/bus/mdev/devices/{address}")
    group = tree.follow(f"{place}/iommu_group") if place else None
    return None if group is None else int(group.rpartition("/")[2])


def chown(tree: Transaction, group: int, *, back: bool) -> None:
    """Give a group's node to another user, or back to root."""
    mark = f"{_CHOWNED}/{group}"
    if not back:
        tree.put(mark, "")
    elif tree.exists(mark):
        tree.drop(mark)


def is_foreign(tree: Transaction, group: int) -> bool:
    """Return whether a group's node belongs to another user than root."""
    return tree.exists(f"{_CHOWNED}/{group}")


def forget(tree: Transaction) -> None:
    """End all holders for a reboot."""
    tree.drop(HOLDS)
    tree.drop(_CHOWNED)
    tree.drop(_NODES)
    tree.drop(_CLAIMS)
