# SPDX-License-Identifier: Apache-2.0

"""IOMMU groups, from ``/sys/kernel/iommu_groups``."""

from __future__ import annotations

import functools
import os
from collections.abc import MutableMapping

from os_acc.exception import HostStepFailed, InvalidInput, OsAccError, is_exhaustion
from os_acc.host.attributes import mode, names, number, read_text
from os_acc.objects.pci import IommuGroup, PciAddress

GROUPS = "sys/kernel/iommu_groups"
# The group name that drivers/vfio/group.c assigns without an IOMMU.
_NO_IOMMU = "vfio-noiommu"


def iommu_on(root: str) -> bool:
    """Return whether the kernel has any IOMMU group.

    :raises HostStepFailed: the kernel reports an error.
    """
    return bool(names(os.path.join(root, GROUPS)))


def blocking_regions(group: IommuGroup) -> tuple[tuple[int, int, str], ...]:
    """Return the reserved regions that prevent the assignment of a group.

    Only ``direct`` does: firmware needs these regions mapped one to one. The
    types ``direct-relaxable``, ``msi`` and ``reserved`` do not
    (Documentation/ABI/testing/sysfs-kernel-iommu_groups).
    """
    return tuple(region for region in group.reserved if region[2] == "direct")


def read_groups(
    root: str, unreadable: MutableMapping[str, OsAccError]
) -> dict[int, IommuGroup]:
    """Return all groups by number; add errors of groups to ``unreadable``.

    :raises HostStepFailed: the list of numbers cannot be read.
    """
    groups = {}
    for name in names(os.path.join(root, GROUPS)):
        try:
            group = read_group(root, number(name, GROUPS))
        except HostStepFailed as error:
            if is_exhaustion(error):
                raise
            unreadable[f"iommu group {name}"] = error
            continue
        if group is not None:
            groups[group.number] = group
    return dict(sorted(groups.items()))


def read_group(root: str, group: int) -> IommuGroup | None:
    """Return the current state of one group; None if it does not exist.

    Members other than PCI functions are omitted; VFIO checks those.

    :raises HostStepFailed: the kernel reports an error or malformed data.
    """
    path = f"{os.path.join(root, GROUPS)}/{group}"
    reserved = read_text(f"{path}/reserved_regions") or ""
    members = read_members(root, group)
    # The kernel removes a group with its last device.
    if not members:
        return None
    return IommuGroup(
        number=group,
        members=members,
        reserved=_regions(reserved),
        # Few groups have a name, so the file is rarely opened.
        unsafe=bool(mode(f"{path}/name")) and read_text(f"{path}/name") == _NO_IOMMU,
    )


def read_members(root: str, group: int) -> tuple[PciAddress, ...]:
    """Return the PCI functions of a group, sorted; none if it does not exist.

    :raises HostStepFailed: the kernel reports an error.
    """
    members = []
    for name in names(os.path.join(root, GROUPS, str(group), "devices")):
        try:
            members.append(PciAddress.parse(name))
        except InvalidInput:
            continue
    return tuple(sorted(members)) if len(members) > 1 else tuple(members)


# Most groups have the same regions, those of the host's interrupt controller.
@functools.lru_cache(256)
def _regions(text: str) -> tuple[tuple[int, int, str], ...]:
    return tuple(_region(line) for line in text.split("\n") if line)


def _region(line: str) -> tuple[int, int, str]:
    match line.split():
        case [start, end, kind]:
            what = "reserved_regions"
            return (number(start, what), number(end, what), kind)
        case _:
            raise HostStepFailed(
                f"reserved_regions contains {line[:80]!r}, expected start, end and type"
            )
