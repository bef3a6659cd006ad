# SPDX-License-Identifier: Apache-2.0

"""Devices in use by the host itself.

Only uses visible to an ordinary user are found. Not found are a process that has
opened a block device without claiming it, another network or mount namespace, and
a client inside the kernel, such as ZFS: a plug finds it (:mod:`os_acc.privsep.disks`).
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from os_acc.exception import HostStepFailed
from os_acc.host.attributes import link_name, names, number, read_lines, read_text
from os_acc.host.class_devices import ClassDevice, class_devices
from os_acc.host.function import DEVICES
from os_acc.host.gpu_parts import part_uses
from os_acc.host.uses import judge
from os_acc.host.view import Host
from os_acc.objects.pci import PciAddress

# With native multipath the mounted disk is a virtual device below the subsystem;
# the controller has only a hidden path to it
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
        """Return how the host uses this device, partitions aside."""
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


def block_uses(root: str) -> Iterator[tuple[PciAddress, str]]:
    """Yield each use of a block device, with its PCI function.

    :raises HostStepFailed: the kernel reports an error.
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
    # The device itself, or the disk of a partition.
    for name in (device.name, *device.ancestors[-1:]):
        if name in paths:
            return paths[name]
    return []


def _multipath(devices: list[ClassDevice]) -> dict[str, list[PciAddress]]:
    """Return the functions that lead to each multipath disk, by its name."""
    paths: dict[str, list[PciAddress]] = {}
    for device in devices:
        match = _NVME_PATH.fullmatch(device.name)
        if match is not None and device.owner is not None:
            paths.setdefault(match[1] + match[2], []).append(device.owner)
    return paths


def _read_busy(root: str) -> _Busy:
    mounts: dict[str, str] = {}
    sources: dict[str, str] = {}
    for device, source, where in _mounts(root):
        mounts.setdefault(device, where)
        # A file system may have its own device number, as btrfs does.
        if source.startswith("/dev/"):
            sources.setdefault(os.path.basename(source), where)
    return _Busy(mounts, sources, _swaps(root), _btrfs(root))


def _mounts(root: str) -> Iterator[tuple[str, str, str]]:
    """Yield ``major:minor`` (empty if unknown), source and target of each mount.

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
    # Every process sees its root mounted: no mount at all means no /proc, and the
    # uses are unknown.
    lines = read_lines(f"{proc}/mounts")
    if not lines:
        raise HostStepFailed(
            f"{proc}/mountinfo shows no mount", hint="check that /proc is mounted"
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
    """Return all members of mounted btrfs; mountinfo names one per file system."""
    directory = os.path.join(root, "sys/fs/btrfs")
    return frozenset(
        member
        for filesystem in names(directory)
        for member in names(f"{directory}/{filesystem}/devices")
    )


_DISPLAY_CLASS = 0x03


def display_uses(root: str, host: Host) -> Iterator[tuple[PciAddress, str]]:
    """Yield each display in use, with its PCI function.

    :raises HostStepFailed: the kernel reports an error.
    """
    yield from _boot_displays(root, host)
    yield from _connectors(root)
    if _console_on_framebuffer(root):
        for device in class_devices(root, "graphics"):
            if device.owner is not None:
                yield device.owner, f"framebuffer {device.name} shows the console"


def _boot_displays(root: str, host: Host) -> Iterator[tuple[PciAddress, str]]:
    for address, function in host.functions.items():
        if function.class_code >> 16 == _DISPLAY_CLASS:
            path = os.path.join(root, DEVICES, str(address))
            use = judge(str(address), functools.partial(_boot_vga, path))
            if use is not None:
                yield address, use


def _boot_vga(path: str) -> str | None:
    # Set by the VGA arbiter, even for a function without a driver.
    if read_text(f"{path}/boot_vga") == "1":
        return "it is the display that the firmware booted with"
    return None


def _connectors(root: str) -> Iterator[tuple[PciAddress, str]]:
    for device in class_devices(root, "drm"):
        if device.owner is not None:
            use = judge(device.name, functools.partial(_screen, device))
            if use is not None:
                yield device.owner, f"display output {use}"


def _screen(device: ClassDevice) -> str | None:
    # Cards and render nodes have neither attribute.
    if (
        read_text(f"{device.path}/status") == "connected"
        and read_text(f"{device.path}/enabled") == "enabled"
    ):
        return f"{device.name} drives a screen"
    return None


def _console_on_framebuffer(root: str) -> bool:
    return any(
        "frame buffer" in (read_text(f"{console.path}/name") or "")
        and read_text(f"{console.path}/bind") == "1"
        for console in class_devices(root, "vtconsole")
    )


_IFF_UP = 0x1  # include/uapi/linux/if.h


def network_uses(root: str) -> Iterator[tuple[PciAddress, str]]:
    """Yield each network interface in use, with its PCI function.

    :raises HostStepFailed: the kernel reports an error.
    """
    for device in class_devices(root, "net"):
        if device.owner is not None:
            use = judge(device.name, functools.partial(_use, device))
            if use is not None:
                yield device.owner, f"network interface {use}"


def _use(device: ClassDevice) -> str | None:
    if (master := link_name(f"{device.path}/master")) is not None:
        return f"{device.name} is part of {master}"
    for name in names(device.path):
        if name.startswith("upper_"):
            return f"{device.name} carries {name.removeprefix('upper_')}"
    return f"{device.name} is up" if _is_up(device.path) else None


def _is_up(path: str) -> bool:
    flags = read_text(f"{path}/flags")
    if flags is not None and number(flags, f"{path}/flags") & _IFF_UP:
        return True
    return read_text(f"{path}/operstate") == "up"


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """A snapshot of the host's uses: a sentence for each function."""

    by_function: Mapping[PciAddress, str]

    def of(self, address: PciAddress) -> str | None:
        """Return the host's use of a function; None if unused."""
        return self.by_function.get(address)


def read_usage(root: str, host: Host) -> Usage:
    """Determine the uses of all functions of a scan.

    :raises HostStepFailed: the kernel reports an error: the uses are unknown.
    """
    found: dict[PciAddress, str] = {}
    for uses in (
        block_uses(root),
        network_uses(root),
        display_uses(root, host),
        part_uses(root, host),
    ):
        for address, sentence in uses:
            found.setdefault(address, sentence)
    return Usage(MappingProxyType(found))
