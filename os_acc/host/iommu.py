# SPDX-License-Identifier: Apache-2.0

"""IOMMU groups, from ``/sys/kernel/iommu_groups``."""

from __future__ import annotations

import functools
import os
from collections.abc import MutableMapping

from os_acc.exception import HostStepFailed, InvalidPciAddress, OsAccError
from os_acc.host.attributes import names, number, read_text
from os_acc.objects.pci import IommuGroup, PciAddress

GROUPS = "sys/kernel/iommu_groups"
# The name that drivers/vfio/group.c gives to a group without an IOMMU.
_NO_IOMMU = "vfio-noiommu"


def iommu_on(root: str) -> bool:
    """Whether the kernel isolates anything at all.

    :raises HostStepFailed: the kernel refuses to say.
    """
    return bool(names(os.path.join(root, GROUPS)))


def blocking_regions(group: IommuGroup) -> tuple[tuple[int, int, str], ...]:
    """The reserved regions that keep a group from being given to a guest.

    ``direct`` only: firmware needs these mapped one to one. What is
    ``direct-relaxable``, ``msi`` or ``reserved`` does not stand in the way
    (Documentation/ABI/testing/sysfs-kernel-iommu_groups).
    """
    return tuple(region for region in group.reserved if region[2] == "direct")


def read_groups(
    root: str, unreadable: MutableMapping[str, OsAccError]
) -> dict[int, IommuGroup]:
    """All groups by number; those that cannot be read go to ``unreadable``.

    :raises HostStepFailed: not even the numbers can be read.
    """
    groups = {}
    for name in names(os.path.join(root, GROUPS)):
        try:
            group = read_group(root, number(name, GROUPS))
        except HostStepFailed as error:
            unreadable[f"iommu group {name}"] = error
            continue
        if group is not None:
            groups[group.number] = group
    return dict(sorted(groups.items()))


def read_group(root: str, group: int) -> IommuGroup | None:
    """One group as it is now; None where there is none (any more).

    Members that are no PCI functions are not listed; VFIO judges those.

    :raises HostStepFailed: the kernel refuses, or says what nobody understands.
    """
    path = f"{os.path.join(root, GROUPS)}/{group}"
    reserved = read_text(f"{path}/reserved_regions") or ""
    members = _members(f"{path}/devices")
    # The kernel drops a group with its last device.
    if not members:
        return None
    return IommuGroup(
        number=group,
        members=members,
        reserved=_regions(reserved),
        unsafe=read_text(f"{path}/name") == _NO_IOMMU,
    )


def _members(path: str) -> tuple[PciAddress, ...]:
    members = []
    for name in names(path):
        try:
            members.append(PciAddress.parse(name))
        except InvalidPciAddress:
            continue
    return tuple(sorted(members)) if len(members) > 1 else tuple(members)


# Most groups have the same ones, of the host's interrupt controller.
@functools.lru_cache(256)
def _regions(text: str) -> tuple[tuple[int, int, str], ...]:
    return tuple(_region(line) for line in text.split("\n") if line)


def _region(line: str) -> tuple[int, int, str]:
    match line.split():
        case [start, end, kind]:
            what = "reserved_regions"
            return (number(start, what), number(end, what), kind)
        case _:
            raise HostStepFailed(f"reserved_regions says {line[:80]!r}")
