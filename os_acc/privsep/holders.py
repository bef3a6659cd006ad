# SPDX-License-Identifier: Apache-2.0

"""Find the holders of a device among all processes, without side effects.

``/dev/vfio/<group>`` answers EBUSY while a process holds the group or one of its
devices, and also when the holder's process is gone but its memory is still pinned
(drivers/vfio/group.c): that answer decides, and the names only inform operators. A
kernel with iommufd alone has no such node: see :func:`.pci_functions.probe_group`.

A process that has only opened ``/dev/vfio/devices/vfioN`` holds no device, but an
unbind waits until it closes the node (vfio_device_fops_cdev_open() takes a reference
in drivers/vfio/device_cdev.c): no probe finds it, and its name alone counts.

While a function is on a driver of the host, its holders are the processes that have a
node of that driver open. A mapping whose descriptor is closed is not found, nor is a
client inside the kernel: see :func:`.pci_functions.claimed_disks`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from typing import Final

from os_acc import privsep
from os_acc.objects.pci import PciAddress
from os_acc.privsep import kernel, mdev, pci_functions, record, request
from os_acc.privsep.outcome import Outcome

_NAMED_AT_MOST = 16
_NVIDIA: Final = "proc/driver/nvidia/gpus"
_CDEVS: Final = "/dev/vfio/devices/"
#: d_path() in fs/d_path.c.
_DELETED: Final = " (deleted)"
_MINOR: Final = re.compile(r"Device Minor:\s*([0-9]+)\s*", re.ASCII)


Holders = tuple[str, int, tuple[tuple[int, str], ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class HoldersRequest(request.Request):
    """Functions that may be held."""

    addresses: request.Addresses


@dataclasses.dataclass(frozen=True, slots=True)
class MdevRequest(request.Request):
    """A mediated device that may be held."""

    uuid: request.Uuid


@request.entrypoint(privsep.inspect, HoldersRequest)
def holders(call: HoldersRequest) -> Holders:
    """Return whether one of these functions is held, and its holders.

    :returns: an outcome (ok: not held; in-use; unsure), the error number behind it,
        and (pid, command) of the holders that were found.
    """
    nodes: set[str] = set()
    try:
        for address in call.addresses:
            nodes.update(_device_nodes(pci_functions.directory(address)))
            # Any other function without a driver may just be free.
            if _is_with_guest(address):
                nodes.update(_leaving_nodes(pci_functions.directory(address)))
            nodes.update(_multipath_nodes(address))
            nodes.update(_nvidia_nodes(address))
        return _holders(nodes, map(pci_functions.group, call.addresses))
    except OSError as error:
        return (Outcome.UNSURE, error.errno or errno.EIO, ())


def _is_with_guest(address: PciAddress) -> bool:
    """Return whether a function is on record for a guest, and not given back yet."""
    try:
        found = record.read(address)
    except record.RecordUnclear:
        return True
    return found is not None and found.use == record.FunctionUse.GUEST


@request.entrypoint(privsep.inspect, MdevRequest)
def mdev_holders(call: MdevRequest) -> Holders:
    """Answer as :func:`holders`; a missing mediated device is not held."""
    try:
        directory = mdev.directory(call.uuid)
        nodes = {*_device_nodes(directory), *_leaving_nodes(directory)}
        return _holders(nodes, [mdev.group(call.uuid)], [call.uuid])
    except OSError as error:
        return (Outcome.UNSURE, error.errno or errno.EIO, ())


def _holders(
    nodes: set[str], groups: Iterable[int | None], mdevs: Iterable[str] = ()
) -> Holders:
    # Regardless of the driver: it may be a variant of vfio-pci, or unbound while the
    # unbind waits for the guest.
    numbers = sorted({each for each in groups if each is not None})
    for name in map(str, numbers):
        if os.path.exists(kernel.current.path("dev/vfio", name)):
            nodes.add(f"/dev/vfio/{name}")
    # Scanning all processes is expensive on a busy host: only done if there is
    # a node that could be held.
    found = tuple(_processes(nodes))[:_NAMED_AT_MOST] if nodes else ()
    if found:
        return (Outcome.IN_USE, errno.EBUSY, found)
    probes = (*map(pci_functions.probe_group, numbers), *map(mdev.probe, mdevs))
    error = next(filter(None, probes), 0)
    if error == errno.EBUSY:
        return (Outcome.IN_USE, error, ())
    return (Outcome.UNSURE if error else Outcome.OK, error, ())


def _multipath_nodes(address: PciAddress) -> Iterator[str]:
    """Yield the nodes of the multipath disks to which an NVMe function leads.

    Their directories are below the subsystem: nvme_mpath_set_live() and
    nvme_add_ns_head_cdev() in drivers/nvme/host/multipath.c.
    """
    for name in pci_functions.disks_below(pci_functions.directory(address)):
        generic = name.replace("nvme", "ng", 1)
        for place in (f"sys/class/block/{name}", f"sys/class/nvme-generic/{generic}"):
            yield from _device_nodes(kernel.current.path(place))


def _nvidia_nodes(address: PciAddress) -> Iterator[str]:
    """Yield the node of a GPU on NVIDIA's driver, which sysfs does not show.

    An unbind waits until no process has it open: nv_pci_remove_helper() in
    kernel-open/nvidia/nv-pci.c of NVIDIA's open-gpu-kernel-modules.
    """
    path = kernel.current.path(_NVIDIA, str(address), "information")
    try:
        lines = kernel.current.read(path).splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        if (match := _MINOR.fullmatch(line)) is not None:
            yield f"/dev/nvidia{match[1]}"


def _device_nodes(directory: str) -> Iterator[str]:
    """Yield every device node below /dev that the function's driver created."""
    for path, directories, files in os.walk(os.path.realpath(directory)):
        # VFs have their directories beside the PF's, but a bridge contains the
        # directories of its children, which are functions of their own.
        directories[:] = [
            name
            for name in directories
            if not os.path.exists(os.path.join(path, name, "vendor"))
        ]
        if "dev" not in files or "uevent" not in files:
            continue
        for line in kernel.current.read(os.path.join(path, "uevent")).splitlines():
            key, _, value = line.partition("=")
            if key == "DEVNAME":
                yield f"/dev/{value}"


def _leaving_nodes(directory: str) -> Iterator[str]:
    """Yield a mark for all deleted nodes: nothing shows which one was a device's."""
    if pci_functions.may_be_leaving(directory):
        yield _DELETED


def _processes(nodes: set[str]) -> Iterator[tuple[int, str]]:
    proc = kernel.current.path("proc")
    for name in sorted(filter(str.isdigit, os.listdir(proc)), key=int):
        process = os.path.join(proc, name)
        if any(_holds(each, nodes) for each in _tables(process)):
            yield (int(name), _command(os.path.join(process, "comm")))


def _tables(process: str) -> Iterator[str]:
    """Yield a directory for each table of descriptors that a process may have.

    A thread can have a table of its own (CLONE_FILES in unshare(2)), and the first one
    has none once it has ended. A read for each of thousands of threads would take
    minutes: most share the table that was read before.
    """
    yield os.path.join(process, "fd")
    read = int(os.path.basename(process))
    tasks = os.path.join(process, "task")
    with contextlib.suppress(OSError):
        for task in map(int, os.listdir(tasks)):
            if not kernel.current.shares_files(read, task):
                read = task
                yield os.path.join(tasks, str(task), "fd")


def _holds(directory: str, nodes: set[str]) -> bool:
    """Return whether a process of others has one of these nodes open.

    The helper's own ones, which erase a disk or keep it claimed, have a file of the
    helper open as well.
    """
    links = {}
    # The process ended, or is not accessible: the probe decides.
    with contextlib.suppress(OSError):
        for link in (os.path.join(directory, fd) for fd in os.listdir(directory)):
            with contextlib.suppress(OSError):
                links[link] = os.readlink(link)
    return any(
        target in nodes
        or (
            _DELETED in nodes
            and target.startswith(_CDEVS)
            and target.endswith(_DELETED)
        )
        for target in links.values()
    ) and not any(itertools.starmap(_is_own, links.items()))


def _is_own(link: str, target: str) -> bool:
    """Return whether a descriptor is of a file of the helper.

    The path alone may be that of another mount namespace.
    """
    if not target.startswith(f"{kernel.current.path(kernel.LOCKS)}/"):
        return False
    try:
        return os.path.samefile(link, target)
    except OSError:
        return False


def _command(path: str) -> str:
    try:
        return kernel.current.read(path).strip()
    except OSError:
        return ""
