# SPDX-License-Identifier: Apache-2.0

"""Block devices that are mounted, swapped to, or held by another one."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Iterator

from os_acc.exception import HostStepFailed
from os_acc.host.attributes import names, read_lines, read_text
from os_acc.host.class_devices import ClassDevice, class_devices
from os_acc.host.usage.guard import judge
from os_acc.objects.pci import PciAddress

# With native multipath the disk that is mounted hangs below the subsystem,
# a virtual device; below the controller is only a hidden path to it
# (drivers/nvme/host/multipath.c, nvme_mpath_set_disk_name).
_NVME_PATH = re.compile(r"(nvme[0-9]+)c[0-9]+(n[0-9]+)", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class _Busy:
    """Block devices in use, by number ``major:minor`` or by name."""

    mounts: dict[str, str]
    sources: dict[str, str]
    swaps: frozenset[str]
    btrfs: frozenset[str]

    def use(self, device: ClassDevice) -> str | None:
        """How the host uses this one device, partitions aside."""
        if holders := names(f"{device.path}/holders"):
            return f"{device.name} is held by {holders[0]}"
        if device.name in self.swaps:
            return f"{device.name} is swap space"
        if device.name in self.btrfs:
            return f"{device.name} is part of a mounted btrfs"
        number = read_text(f"{device.path}/dev")
        where = self.mounts.get(number) if number else None
        where = where or self.sources.get(device.name)
        return f"{device.name} is mounted at {where}" if where else None


def read_uses(root: str) -> Iterator[tuple[PciAddress, str]]:
    """Each use of a block device, with the function that it belongs to.

    :raises HostStepFailed: the kernel refuses to say.
    """
    devices = class_devices(root, "block")
    busy = _read_busy(root)
    paths = _multipath(devices)
    for device in devices:
        owners = _owners(device, paths)
        if not owners:
            continue
        use = judge(device.name, functools.partial(busy.use, device))
        if use is not None:
            for owner in owners:
                yield owner, f"block device {use}"


def _owners(
    device: ClassDevice, paths: dict[str, list[PciAddress]]
) -> list[PciAddress]:
    if device.owner is not None:
        return [device.owner]
    # The device itself, or the disk of which it is a partition.
    for name in (device.name, *device.ancestors[-1:]):
        if name in paths:
            return paths[name]
    return []


def _multipath(devices: list[ClassDevice]) -> dict[str, list[PciAddress]]:
    """The functions that lead to each multipath disk, by its name."""
    paths: dict[str, list[PciAddress]] = {}
    for device in devices:
        match = _NVME_PATH.fullmatch(device.name)
        if match is not None and device.owner is not None:
            paths.setdefault(match[1] + match[2], []).append(device.owner)
    return paths


def _read_busy(root: str) -> _Busy:
    mounts: dict[str, str] = {}
    sources: dict[str, str] = {}
    for number, source, where in _mounts(root):
        mounts.setdefault(number, where)
        # A file system may have a number of its own, as btrfs does.
        if source.startswith("/dev/"):
            sources.setdefault(os.path.basename(source), where)
    return _Busy(mounts, sources, _swaps(root), _btrfs(root))


def _mounts(root: str) -> Iterator[tuple[str, str, str]]:
    """``major:minor`` (empty if unknown), source and place of each mount.

    Documentation/filesystems/proc.rst, "/proc/<pid>/mountinfo".
    """
    proc = os.path.join(root, "proc/self")
    lines = read_lines(f"{proc}/mountinfo")
    for line in lines:
        before, _, after = line.partition(" - ")
        match before.split(" "), after.split(" "):
            case [_, _, number, _, where, *_], [_, source, *_]:
                yield number, source, where
    if lines:
        return
    # Every process sees its root mounted: no mount at all means no /proc, and
    # then nobody knows what is in use.
    lines = read_lines(f"{proc}/mounts")
    if not lines:
        raise HostStepFailed(
            f"{proc}/mountinfo shows no mount", hint="is /proc mounted?"
        )
    for line in lines:
        match line.split(" "):
            case [source, where, *_]:
                yield "", source, where


def _swaps(root: str) -> frozenset[str]:
    lines = read_lines(os.path.join(root, "proc/swaps"))[1:]
    return frozenset(
        os.path.basename(line.split()[0]) for line in lines if line.split()
    )


def _btrfs(root: str) -> frozenset[str]:
    """Every member of a mounted btrfs; mountinfo names only one of them."""
    directory = os.path.join(root, "sys/fs/btrfs")
    return frozenset(
        member
        for filesystem in names(directory)
        for member in names(f"{directory}/{filesystem}/devices")
    )
