# SPDX-License-Identifier: Apache-2.0

"""Mediated devices and their types, as Linux shows them.

Documentation/driver-api/vfio-mediated-device.rst and
Documentation/ABI/testing/sysfs-bus-vfio-mdev.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import Final

from os_acc.exception import InvalidInput
from os_acc.host.attributes import link_name, link_target, names, number, read_text
from os_acc.objects.mdev import MdevType, is_name

#: Directory of all mediated devices, below the root.
MDEVS: Final = "sys/bus/mdev/devices"
#: Directory of their parents, below the root.
PARENTS: Final = "sys/class/mdev_bus"


@dataclasses.dataclass(frozen=True, slots=True)
class TypeAttributes:
    """The attributes of a type of mediated devices.

    :ivar available: how many more can be created now, ``available_instances``.
    :ivar device_api: the interface to the guest, such as ``vfio-pci``.
    """

    available: int
    device_api: str
    title: str
    description: str


@dataclasses.dataclass(frozen=True, slots=True)
class MediatedDevice:
    """A mediated device that exists.

    :ivar type: None: its names are not those of a type.
    :ivar iommu_group: None: its driver is not bound.
    """

    uuid: str
    type: MdevType | None
    iommu_group: int | None


def parents(root: str) -> list[str]:
    """Return the names of all parents, sorted.

    :raises HostStepFailed: they cannot be listed.
    """
    return [name for name in names(os.path.join(root, PARENTS)) if is_name(name)]


def read_type(root: str, kind: MdevType) -> TypeAttributes | None:
    """Return the attributes of a type; None: its parent does not offer it.

    :raises HostStepFailed: an attribute cannot be read, or is no number.
    """
    directory = os.path.join(
        root, PARENTS, kind.parent, "mdev_supported_types", kind.name
    )
    path = os.path.join(directory, "available_instances")
    available = read_text(path)
    if available is None:
        return None
    return TypeAttributes(
        max(0, number(available, path)),
        read_text(os.path.join(directory, "device_api")) or "",
        read_text(os.path.join(directory, "name")) or "",
        read_text(os.path.join(directory, "description")) or "",
    )


def type_names(root: str, parent: str) -> list[str]:
    """Return the names of a parent's types, sorted; none if there is no such parent.

    :raises HostStepFailed: they cannot be listed.
    """
    return names(os.path.join(root, PARENTS, parent, "mdev_supported_types"))


def read_mdevs(root: str) -> tuple[MediatedDevice, ...]:
    """Return all mediated devices of the host.

    :raises HostStepFailed: they cannot be read.
    """
    found = (read_mdev(root, uuid) for uuid in names(os.path.join(root, MDEVS)))
    return tuple(each for each in found if each is not None)


def read_mdev(root: str, uuid: str) -> MediatedDevice | None:
    """Return one mediated device; None if it does not exist.

    :raises HostStepFailed: it cannot be read.
    """
    path = os.path.join(root, MDEVS, uuid)
    target = link_target(path)
    if target is None:
        return None
    parent = os.path.basename(os.path.dirname(target))
    group = link_name(os.path.join(path, "iommu_group"))
    kind = None
    with contextlib.suppress(InvalidInput):
        kind = MdevType(parent, link_name(os.path.join(path, "mdev_type")) or "")
    return MediatedDevice(
        uuid, kind, number(group, path) if group is not None else None
    )
