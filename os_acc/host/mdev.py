# SPDX-License-Identifier: Apache-2.0

"""Mediated devices and their types, and NVIDIA's vGPUs on virtual functions.

Documentation/driver-api/vfio-mediated-device.rst and
Documentation/ABI/testing/sysfs-bus-vfio-mdev.

From Linux 6.8 on, NVIDIA's vGPU Manager has no mediated devices, but a directory
``nvidia`` in each VF: a number in ``current_vgpu_type`` is the type of the VF's vGPU,
0 none, and ``creatable_vgpu_types`` has a line "ID : name" for each type for which the
card has capacity now (NVIDIA vGPU Software User Guide, "Creating an NVIDIA vGPU on a
Linux with KVM hypervisor that uses a vendor-specific VFIO framework").
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from typing import Final

from os_acc.exception import InvalidInput
from os_acc.host.answers import answer
from os_acc.host.attributes import (
    function_path,
    link_name,
    link_target,
    names,
    number,
    read_text,
)
from os_acc.objects.mdev import MdevType, is_name
from os_acc.objects.pci import PciAddress

#: Directory of all mediated devices, below the root.
MDEVS: Final = "sys/bus/mdev/devices"
#: Directory of their parents, below the root.
PARENTS: Final = "sys/class/mdev_bus"
NVIDIA_VENDOR: Final = 0x10DE
_VGPU_TYPE: Final = re.compile(r"\s*([0-9]{1,9})\s*:\s*(\S.*?)\s*", re.ASCII)


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
    return answer(root, kind.function or kind.parent, _read_type, directory)


def _read_type(directory: str) -> TypeAttributes | None:
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


def vgpu_type(root: str, address: PciAddress) -> int | None:
    """Return the type of a VF's vGPU, 0 for none; None: the VF cannot have one.

    :raises HostStepFailed: the kernel reports an error or malformed data.
    """
    path = function_path(root, address, "nvidia/current_vgpu_type")
    text = answer(root, address, read_text, path)
    return None if text is None else number(text, path)


def creatable_vgpu_types(root: str, address: PciAddress) -> dict[int, str]:
    """Return the names of the types that a VF can get now, by their numbers.

    :raises HostStepFailed: the kernel reports an error.
    """
    path = function_path(root, address, "nvidia/creatable_vgpu_types")
    text = answer(root, address, read_text, path) or ""
    matches = (_VGPU_TYPE.fullmatch(line) for line in text.splitlines())
    return {int(match[1]): match[2] for match in matches if match is not None}
