# SPDX-License-Identifier: Apache-2.0

"""Create and delete the vGPU of a virtual function on NVIDIA's driver.

The type in ``nvidia/current_vgpu_type`` does not tell who has written it (NVIDIA vGPU
Software User Guide, "Creating an NVIDIA vGPU on a Linux with KVM hypervisor that uses a
vendor-specific VFIO framework"). A file beside the worker's locks does: it names the
lease, is written before the type, and ends at reboot, as vGPUs do. Without it, nothing
is deleted.
"""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Final

from os_acc import privsep
from os_acc.objects.pci import PciAddress
from os_acc.privsep import functions, kernel, worker
from os_acc.privsep.step import StepTarget

_CURRENT: Final = "nvidia/current_vgpu_type"
_SUFFIX: Final = ".vgpu"


@privsep.base.step
def create_vgpu(target: StepTarget, kind: int) -> None:
    """Create the vGPU of a lease; do nothing if the lease has it already.

    :param kind: the number of its type.
    :raises OSError: EBUSY: the VF is a vGPU that is not the lease's; EIO: the driver
        has not accepted the type; or the driver's refusal.
    """
    address = target.functions[0]
    found, owner = _current(target), _owner(address)
    if found == kind and owner == target.lease:
        return
    if found:
        raise OSError(errno.EBUSY, f"is a vGPU of type {found} already", _CURRENT)
    if kind <= 0:
        raise OSError(errno.EINVAL, f"{kind} is not a type", _CURRENT)
    _mark(address, target.lease)
    _set(target, kind)


@privsep.base.step
def delete_vgpu(target: StepTarget) -> None:
    """Delete the vGPU of a lease; do nothing if the lease has none.

    :raises OSError: EBUSY: a process holds it; EIO: the driver has not deleted it; or
        the driver's refusal.
    """
    address = target.functions[0]
    if _owner(address) != target.lease:
        return
    if _current(target):
        group = functions.group(address)
        if group is not None and kernel.current.probe_vfio_group(group) == errno.EBUSY:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), _CURRENT)
        _set(target, 0)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_path(address))


def _current(target: StepTarget) -> int:
    return int(target.read(target.functions[0], _CURRENT))


def _set(target: StepTarget, kind: int) -> None:
    target.write(target.functions[0], _CURRENT, str(kind))
    found = _current(target)
    if found != kind:
        raise OSError(errno.EIO, f"is {found} after a write of {kind}", _CURRENT)


def _path(address: PciAddress) -> str:
    return kernel.current.path(worker.LOCKS, f"{address}{_SUFFIX}")


def _owner(address: PciAddress) -> str:
    """Return the lease that has created the vGPU; '' if none has."""
    try:
        return kernel.current.read(_path(address)).strip()
    except FileNotFoundError:
        return ""


def _mark(address: PciAddress, lease: str) -> None:
    path = _path(address)
    fresh = f"{path}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(fresh, flags, 0o600)
    try:
        os.write(fd, lease.encode("ascii"))
    finally:
        os.close(fd)
    # A killed worker leaves either no mark or a whole one.
    os.rename(fresh, path)
