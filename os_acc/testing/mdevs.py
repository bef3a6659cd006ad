# SPDX-License-Identifier: Apache-2.0

"""Mediated devices and their parents (drivers/vfio/mdev, samples/vfio-mdev)."""

from __future__ import annotations

import errno
import re

from os_acc.testing import functions, holders, records, vfio
from os_acc.testing.specs import MdevParentSpec, MdevTypeSpec
from os_acc.testing.tree import PRIVATE, Transaction, refuse

#: All mediated devices, as links.
MDEVS = "sys/bus/mdev/devices"
_BUS = "sys/class/mdev_bus"
_PARENTS = f"{PRIVATE}/mdev_parents"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def register(tree: Transaction, name: str, spec: MdevParentSpec, path: str) -> None:
    """Do as mdev_register_parent(), for the device with this directory."""
    tree.put(f"{_PARENTS}/{name}", records.dump(spec))
    tree.link(f"{_BUS}/{name}", path)
    for kind in spec.types:
        place = f"{path}/mdev_supported_types/{kind.name}"
        tree.put(f"{place}/device_api", f"{kind.device_api}\n")
        tree.put(f"{place}/name", f"{kind.title or kind.name}\n")
        if kind.description:
            tree.put(f"{place}/description", f"{kind.description}\n")
        tree.put(f"{place}/create", "", 0o200)
        tree.mkdir(f"{place}/devices")
    _count(tree, name)


def unregister(tree: Transaction, name: str, path: str) -> None:
    """Do as mdev_unregister_parent() (drivers/vfio/mdev/mdev_core.c).

    A driver calls it in its remove(). It removes the link of the class, then each
    mediated device, then the types. A guest that has one open is asked
    to close it, and the removal waits for that (vfio_unregister_group_dev()).

    :raises Blocked: a process holds one; call this again after it has closed it.
    """
    tree.drop(f"{_BUS}/{name}")
    for uuid in _devices(tree, name):
        _drop(tree, uuid)
    tree.drop(f"{path}/mdev_supported_types")
    tree.drop(f"{_PARENTS}/{name}")


def create(tree: Transaction, place: str, text: str) -> None:
    """Do as create_store() of a type.

    :param place: parent and type, with a slash between.
    """
    name, kind = place.split("/")
    _check_registered(tree, name, place)
    uuid = text.removesuffix("\n").lower()
    if not _UUID.fullmatch(uuid):
        raise refuse(errno.EINVAL, place)
    if tree.exists(f"{MDEVS}/{uuid}"):
        raise refuse(errno.EEXIST, place)
    if not _available(tree, name, kind):
        raise refuse(_spec(tree, name).refusal, place)
    path = f"{_path(tree, name)}/{uuid}"
    types = f"{_path(tree, name)}/mdev_supported_types"
    tree.link(f"{path}/mdev_type", f"{types}/{kind}")
    tree.put(f"{path}/remove", "", 0o200)
    tree.link(f"{MDEVS}/{uuid}", path)
    tree.link(f"{types}/{kind}/devices/{uuid}", path)
    # vfio_register_emulated_iommu_dev(): a group that no IOMMU isolates; none without
    # CONFIG_VFIO_GROUP.
    if vfio.has_groups(tree):
        group = next(functions.numbers(tree) or iter(()), 0)
        directory = f"{functions.GROUPS}/{group}"
        tree.link(f"{directory}/devices/{uuid}", path)
        tree.link(f"{path}/iommu_group", directory)
        vfio.show_group(tree, group)
    vfio.show(tree, path)
    _count(tree, name)


def remove(tree: Transaction, uuid: str, text: str) -> None:
    """Do as remove_store() of a mediated device.

    :raises Blocked: a process holds it (vfio_unregister_group_dev()).
    """
    if text.strip() != "1":
        return
    name = _parent(tree, uuid)
    _check_registered(tree, name, uuid)
    _drop(tree, uuid)
    _count(tree, name)


def _check_registered(tree: Transaction, name: str, about: str) -> None:
    """Refuse a write once the parent's unregistration has started (unreg_sem)."""
    if not tree.exists(f"{_BUS}/{name}"):
        raise refuse(errno.ENODEV, about)


def boot(tree: Transaction, parents: tuple[MdevParentSpec, ...]) -> None:
    """Load the drivers of virtual parents."""
    tree.mkdir(MDEVS)
    tree.mkdir(_BUS)
    for spec in parents:
        path = f"sys/devices/virtual/{spec.name}/{spec.name}"
        tree.mkdir(path)
        register(tree, spec.name, spec, path)


def exists(tree: Transaction, uuid: str) -> bool:
    """Return whether there is a mediated device with this UUID."""
    return tree.exists(f"{MDEVS}/{uuid}")


def migration(tree: Transaction, uuid: str) -> tuple[int, int]:
    """Return the flags and the size that VFIO answers about a mediated device."""
    kind = _kind(tree, uuid)
    types = _spec(tree, _parent(tree, uuid)).types
    return next(each.migration for each in types if each.name == kind)


def forget(tree: Transaction) -> None:
    """Forget all parents for a reboot."""
    tree.drop(_PARENTS)


def _drop(tree: Transaction, uuid: str) -> None:
    path = tree.follow(f"{MDEVS}/{uuid}") or ""
    vfio.leave(tree, path)
    if holders.holds(tree, uuid):
        raise holders.Blocked
    kind = tree.follow(f"{path}/mdev_type")
    tree.drop(f"{kind}/devices/{uuid}")
    tree.drop(f"{MDEVS}/{uuid}")
    if (directory := tree.follow(f"{path}/iommu_group")) is not None:
        tree.drop(directory)
        vfio.hide_group(tree, directory.rpartition("/")[2])
    vfio.hide(tree, path)
    tree.drop(path)


def _count(tree: Transaction, name: str) -> None:
    """Write how many more of each type can be created."""
    path = f"{_path(tree, name)}/mdev_supported_types"
    for kind in _spec(tree, name).types:
        count = _available(tree, name, kind.name)
        tree.put(f"{path}/{kind.name}/available_instances", f"{count}\n")


def _available(tree: Transaction, name: str, kind: str) -> int:
    spec = _spec(tree, name)
    costs = {each.name: each.cost for each in spec.types}
    used = sum(costs[_kind(tree, uuid)] for uuid in _devices(tree, name))
    return (spec.capacity - used) // costs[kind]


def _kind(tree: Transaction, uuid: str) -> str:
    path = tree.follow(f"{MDEVS}/{uuid}") or ""
    return (tree.follow(f"{path}/mdev_type") or "").rpartition("/")[2]


def _devices(tree: Transaction, name: str) -> list[str]:
    return [uuid for uuid in tree.list(MDEVS) if _parent(tree, uuid) == name]


def _parent(tree: Transaction, uuid: str) -> str:
    path = tree.follow(f"{MDEVS}/{uuid}") or ""
    return path.rpartition("/")[0].rpartition("/")[2]


def _path(tree: Transaction, name: str) -> str:
    return tree.follow(f"{_BUS}/{name}") or ""


def _spec(tree: Transaction, name: str) -> MdevParentSpec:
    return records.load(MdevParentSpec, tree.read(f"{_PARENTS}/{name}"))


def mtty(name: str = "mtty", migration: tuple[int, int] = (0, 0)) -> MdevParentSpec:
    """Return samples/vfio-mdev/mtty.c: 24 ports, and types of one and two.

    Its driver counts the ports itself. Since Linux 6.7 it has migration.
    """
    types = tuple(
        MdevTypeSpec(
            f"{name}-{ports}",
            cost=ports,
            title=f"{ports} port serial",
            migration=migration,
        )
        for ports in (1, 2)
    )
    return MdevParentSpec(name, 24, types, errno.ENOSPC)


def mdpy(name: str = "mdpy") -> MdevParentSpec:
    """Return samples/vfio-mdev/mdpy.c: four displays of any of three types."""
    types = tuple(
        MdevTypeSpec(
            f"{name}-{size}",
            title=f"{name}-{size}",
            description=f"virtual display, {pixels} framebuffer",
        )
        for size, pixels in (
            ("vga", "640x480"),
            ("xga", "1024x768"),
            ("hd", "1920x1080"),
        )
    )
    return MdevParentSpec(name, 4, types)
