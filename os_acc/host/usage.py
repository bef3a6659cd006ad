# SPDX-License-Identifier: Apache-2.0

"""Devices in use by the host itself.

Only uses visible to an ordinary user are found. Not found are a process that has
opened a block device without claiming it, another network or mount namespace, and
a client inside the kernel that has claimed a disk, such as ZFS: a plug finds it, when
it claims the disks (:mod:`os_acc.privsep.pci_functions`).
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from typing import Final, ParamSpec, TypeAlias

from os_acc.exception import HostStepFailed, is_exhaustion
from os_acc.host import mdev
from os_acc.host.answers import answer
from os_acc.host.attributes import (
    ClassDevice,
    class_devices,
    function_path,
    link_name,
    link_target,
    names,
    nearest_function,
    number,
    read_lines,
    read_text,
)
from os_acc.objects.pci import PciAddress, PciFunction

_P = ParamSpec("_P")
_Functions: TypeAlias = Mapping[PciAddress, PciFunction]

# With native multipath the mounted disk is a virtual device below the subsystem;
# the controller has only a hidden path to it
# (drivers/nvme/host/multipath.c, nvme_mpath_set_disk_name).
_NVME_PATH: Final = re.compile(r"(nvme[0-9]+)c[0-9]+(n[0-9]+)", re.ASCII)
_DISPLAY_CLASS: Final = 0x03
_IFF_UP: Final = 0x1  # include/uapi/linux/if.h
# NVIDIA Multi-Instance GPU User Guide.
_PROC: Final = "proc/driver/nvidia"
_MINOR: Final = re.compile(r"Device Minor:\s*([0-9]+)")
_INSTANCE: Final = re.compile(r"gi[0-9]+")
# Attributes with the paths of disks that a client inside the kernel has open without a
# claim (drivers/block/loop.c, drivers/nvme/target/configfs.c, target_core_file.c), or
# with a line that has one.
_CLIENTS: Final = {
    "sys/class/block/loop*/loop/backing_file": "a loop device",
    "sys/kernel/config/nvmet/subsystems/*/namespaces/*/device_path": "an NVMe target",
    "sys/kernel/config/nvmet/subsystems/*/passthru/device_path": "an NVMe target",
    "sys/kernel/config/target/core/fileio_*/*/info": "a SCSI target",
}
_FILE: Final = re.compile(r"File: (\S+)")
# Links to the block devices that another such client has open
# (Documentation/ABI/testing/sysfs-class-rnbd-server).
_EXPORTED: Final = "sys/class/rnbd-server/ctl/devices/*/block_dev"
# The port of the host in the address of a controller (nvmf_get_address() in
# drivers/nvme/host/fabrics.c).
_FC_PORT: Final = re.compile(r"host_traddr=nn-0x[0-9a-f]+:pn-(0x[0-9a-f]+)", re.I)


def read_usage(
    root: str, functions: _Functions, netdevs: Mapping[str, PciAddress]
) -> dict[PciAddress, str]:
    """Return the host's use of each of these functions that it uses: a sentence.

    :param netdevs: the function of each network interface.
    :raises HostStepFailed: the kernel reports an error: the uses are unknown.
    """
    uses = Uses(functions)
    note_disks(root, uses)
    _note_fabrics(root, uses)
    note_interfaces(root, netdevs, uses)
    note_displays(root, functions, uses)
    _note_parts(root, functions, uses)
    _note_memory(root, uses)
    return uses.found


class Uses:
    """How the host uses some functions: the first use found of each.

    An error counts as a use: a faulty device must neither be taken from the host by
    mistake nor prevent the check of others.
    """

    def __init__(self, functions: Container[PciAddress]) -> None:
        self._functions = functions
        self.found: dict[PciAddress, str] = {}

    def note(
        self,
        owner: PciAddress | None,
        name: str,
        read: Callable[_P, str | None],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> None:
        """Note how the host uses a device, unless a use of its function is known.

        :param owner: the function of the device; None: it has none.
        :param read: returns the use, or None.
        """
        if owner is None or owner in self.found or owner not in self._functions:
            return
        try:
            sentence = read(*args, **kwargs)
        except HostStepFailed as error:
            if is_exhaustion(error):
                raise
            sentence = f"cannot determine the use of {name}: {error.message}"
        if sentence is not None:
            self.found[owner] = sentence


# -- disks -------------------------------------------------------------------


def note_disks(root: str, uses: Uses) -> None:
    """Note the uses of block devices.

    :raises HostStepFailed: the kernel reports an error.
    """
    devices = class_devices(root, "sys/class/block")
    paths: dict[str, list[PciAddress]] = {}
    for device in devices:
        match = _NVME_PATH.fullmatch(device.name)
        if match is not None and device.owner is not None:
            paths.setdefault(match[1] + match[2], []).append(device.owner)
    busy = _Busy(root)
    for device in devices:
        owners = [device.owner] if device.owner else []
        # The device itself, or the disk of a partition.
        for name in (device.name, *device.ancestors[-1:]):
            owners = owners or paths.get(name, [])
        for owner in owners:
            uses.note(owner, device.name, busy.use, device)


def _note_fabrics(root: str, uses: Uses) -> None:
    """Note the Fibre Channel functions that connect NVMe controllers.

    The controllers and their disks are below no function.
    """
    for port in class_devices(root, "sys/class/fc_host"):
        uses.note(port.owner, port.name, _fabrics_use, root, f"{port.path}/port_name")


def _fabrics_use(root: str, path: str) -> str | None:
    if not (name := read_text(path)):
        return None
    for device in class_devices(root, "sys/class/nvme"):
        found = _FC_PORT.search(read_text(f"{device.path}/address") or "")
        if found and int(found[1], 16) == number(name, path):
            return f"NVMe controller {device.name} is connected through it"
    return None


class _Busy:
    """Block devices in use, by number ``major:minor`` or by name."""

    def __init__(self, root: str) -> None:
        self._mounts: dict[str, str] = {}
        self._sources: dict[str, str] = {}
        for device, source, where in _mounts(root):
            self._mounts.setdefault(device, where)
            # A file system may have its own device number, as btrfs does.
            if source.startswith("/dev/"):
                self._sources.setdefault(os.path.basename(source), where)
        lines = read_lines(os.path.join(root, "proc/swaps"))[1:]
        self._swaps = {
            os.path.basename(each.split()[0]) for each in lines if each.split()
        }
        # All members of mounted btrfs; mountinfo names one per file system.
        btrfs = os.path.join(root, "sys/fs/btrfs")
        self._btrfs = {
            member
            for each in names(btrfs)
            for member in names(f"{btrfs}/{each}/devices")
        }
        self._clients = dict(_clients(root))

    def use(self, device: ClassDevice) -> str | None:
        """Return how the host uses this device, partitions aside."""
        if holders := names(f"{device.path}/holders"):
            return f"block device {device.name} is held by {holders[0]}"
        if device.name in self._swaps:
            return f"block device {device.name} is swap space"
        if device.name in self._btrfs:
            return f"block device {device.name} is part of a mounted btrfs"
        # An NVMe target may have the controller.
        for name in (device.name, *device.ancestors):
            if name in self._clients:
                return f"{name} is open in {self._clients[name]}"
        number = read_text(f"{device.path}/dev")
        where = self._mounts.get(number) if number else None
        where = where or self._sources.get(device.name)
        if not where and "" in self._clients:
            return f"block device {device.name} may be open in {self._clients['']}"
        return f"block device {device.name} is mounted at {where}" if where else None


def _clients(root: str) -> Iterator[tuple[str, str]]:
    """Yield the disks and controllers that clients inside the kernel have open.

    A client that cannot be read yields '': it may have any.
    """
    for path in glob.glob(os.path.join(glob.escape(root), _EXPORTED)):
        yield os.path.basename(os.path.realpath(path)), "an RNBD server"
    for pattern, client in _CLIENTS.items():
        for path in sorted(glob.glob(os.path.join(glob.escape(root), pattern))):
            try:
                text = read_text(path) or ""
            except HostStepFailed as error:
                if is_exhaustion(error):
                    raise
                yield "", f"{client}: {error.message}"
                continue
            node = found[1] if (found := _FILE.search(text)) else text
            real = os.path.realpath(os.path.join(root, node.lstrip("/")))
            if real.startswith(os.path.realpath(os.path.join(root, "dev")) + "/"):
                yield os.path.basename(real), client


def _mounts(root: str) -> Iterator[tuple[str, str, str]]:
    """Yield ``major:minor`` (empty if unknown), source and target of each mount."""
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


# -- network interfaces ------------------------------------------------------


def note_interfaces(root: str, netdevs: Mapping[str, PciAddress], uses: Uses) -> None:
    """Note the uses of network interfaces."""
    for name, owner in netdevs.items():
        uses.note(owner, name, _network_use, f"{root}/sys/class/net", name)


def _network_use(directory: str, name: str) -> str | None:
    path = f"{directory}/{name}"
    for each in names(path):
        if each == "master" and (master := link_name(f"{path}/{each}")):
            return f"network interface {name} is part of {master}"
        if each.startswith("upper_"):
            return f"network interface {name} carries {each.removeprefix('upper_')}"
    flags = read_text(f"{path}/flags")
    is_up = flags is not None and number(flags, f"{path}/flags") & _IFF_UP
    if is_up or read_text(f"{path}/operstate") == "up":
        return f"network interface {name} is up"
    return None


# -- displays ----------------------------------------------------------------


def note_displays(root: str, functions: _Functions, uses: Uses) -> None:
    """Note the uses of displays; see :func:`note_disks`."""
    for address, function in functions.items():
        if function.class_code >> 16 == _DISPLAY_CLASS:
            uses.note(address, str(address), _boot_vga, root, address)
    for device in class_devices(root, "sys/class/drm"):
        uses.note(device.owner, device.name, _screen, device)
    if _console_on_framebuffer(root):
        for device in class_devices(root, "sys/class/graphics"):
            sentence = f"framebuffer {device.name} shows the console"
            uses.note(device.owner, device.name, str, sentence)


def _boot_vga(root: str, address: PciAddress) -> str | None:
    # Set by the VGA arbiter, even for a function without a driver.
    if read_text(function_path(root, address, "boot_vga")) == "1":
        return "it is the display that the firmware booted with"
    return None


def _screen(device: ClassDevice) -> str | None:
    # Cards and render nodes have neither attribute.
    if (
        read_text(f"{device.path}/status") == "connected"
        and read_text(f"{device.path}/enabled") == "enabled"
    ):
        return f"display output {device.name} drives a screen"
    return None


def _console_on_framebuffer(root: str) -> bool:
    return any(
        "frame buffer" in (read_text(f"{console.path}/name") or "")
        and read_text(f"{console.path}/bind") == "1"
        for console in class_devices(root, "sys/class/vtconsole")
    )


# -- parts of a device that exist on its host driver -------------------------
#
# Each of them ends, or stops the unbind, when the function leaves its driver: mediated
# devices (Documentation/driver-api/vfio-mediated-device.rst), vGPUs of NVIDIA on VFs
# (:mod:`os_acc.host.mdev`), and MIG instances.


def _note_parts(root: str, functions: _Functions, uses: Uses) -> None:
    for device in class_devices(root, "sys/bus/mdev/devices"):
        sentence = f"it has the mediated device {device.name}"
        uses.note(device.owner, device.name, str, sentence)
    of_nvidia = [
        each
        for each in functions.values()
        if each.identity.vendor == mdev.NVIDIA_VENDOR
    ]
    for each in of_nvidia:
        if each.physfn is not None:
            uses.note(each.address, str(each.address), _vgpu, root, each.address)
    # Reads of the information of a GPU go through its driver.
    if of_nvidia:
        _note_mig(root, [each.address for each in of_nvidia], uses)


def mig_uses(root: str, functions: Collection[PciAddress]) -> dict[PciAddress, str]:
    """Return the use of each of these functions that has a MIG instance.

    :raises HostStepFailed: the instances cannot be listed.
    """
    uses = Uses(functions)
    _note_mig(root, functions, uses)
    return uses.found


def _note_mig(root: str, functions: Iterable[PciAddress], uses: Uses) -> None:
    instances = _mig_instances(root)
    for address in functions if instances else ():
        uses.note(address, str(address), _mig_use, root, address, instances)


def _note_memory(root: str, uses: Uses) -> None:
    """Note CXL memory that is part of a region of the host.

    Documentation/ABI/testing/sysfs-bus-cxl: the decoder of an endpoint has the region,
    and the port of the endpoint leads to the memory device, below its PCI function.
    """
    for device in class_devices(root, "sys/bus/cxl/devices"):
        port = os.path.dirname(os.path.realpath(device.path))
        memory = link_target(f"{port}/uport") or ""
        owner = nearest_function(tuple(memory.split("/")))
        uses.note(owner, device.name, _region, f"{device.path}/region")


def _region(path: str) -> str | None:
    name = read_text(path)
    return f"the host uses its memory as CXL {name}" if name else None


def _vgpu(root: str, address: PciAddress) -> str | None:
    kind = mdev.vgpu_type(root, address)
    return f"it is a vGPU of type {kind}" if kind else None


def _mig_instances(root: str) -> dict[str, str]:
    """Return the first MIG instance of each GPU that has any, by the GPU's minor."""
    directory = os.path.join(root, _PROC, "capabilities")
    found = {}
    for name in names(directory):
        below = names(os.path.join(directory, name, "mig"))
        instances = list(filter(_INSTANCE.fullmatch, below))
        if instances:
            found[name.removeprefix("gpu")] = instances[0]
    return found


def _mig_use(
    root: str, address: PciAddress, instances: Mapping[str, str]
) -> str | None:
    path = os.path.join(root, _PROC, "gpus", str(address), "information")
    for line in answer(root, address, read_lines, path):
        if (match := _MINOR.match(line)) is not None and match[1] in instances:
            return f"it has the MIG instance {instances[match[1]]}"
    return None
