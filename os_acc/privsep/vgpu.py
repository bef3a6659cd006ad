# SPDX-License-Identifier: Apache-2.0

"""Create and delete the vGPU of a virtual function on NVIDIA's driver.

The type in ``nvidia/current_vgpu_type`` does not show who has written it (NVIDIA vGPU
Software User Guide, "Creating an NVIDIA vGPU on a Linux with KVM hypervisor that uses a
vendor-specific VFIO framework"). A file beside the worker's locks does: it names the
lease and its type, is written before the type, and ends at reboot, as vGPUs do. If the
driver refuses the type, another tool may have created a vGPU just before: the file then
has the type 0, and nothing is deleted. Without the file nothing is deleted either, and
the release of a VF that is a vGPU fails: the file may have been lost.
"""

from __future__ import annotations

import errno
import os
from typing import Final

from os_acc import privsep
from os_acc.objects.pci import PciAddress
from os_acc.privsep import claims, pci_functions, privileged_conf
from os_acc.privsep.kernel import LOCKS, StateFile
from os_acc.privsep.step import StepTarget

_CURRENT: Final = "nvidia/current_vgpu_type"
#: The type in a mark: the lease has created no vGPU.
_NOT_OURS: Final = 0


@privsep.base.step
def create_vgpu(target: StepTarget, kind: int) -> None:
    """Create the vGPU of a lease; do nothing if the lease has it already.

    :param kind: the number of its type.
    :raises OSError: EBUSY: the VF is a vGPU that is not the lease's; EIO: the driver
        has not accepted the type; or the driver's refusal.
    :raises CallRefused: root's configuration names another type, or none.
    """
    address = _address(target)
    found = _current(target, address)
    owner, marked = _mark_of(address)
    if found == kind == marked and owner in _leases(target, address):
        return
    root = privileged_conf.last_read()
    if not root.allows_if(address, lambda tags: tags.vgpu_type == kind):
        raise privileged_conf.denied(kind)
    if found:
        if not owner:
            _mark(address, target.lease, _NOT_OURS)
        raise OSError(errno.EBUSY, f"is a vGPU of type {found} already", _CURRENT)
    if kind <= 0:
        raise OSError(errno.EINVAL, f"{kind} is not a type", _CURRENT)
    _mark(address, target.lease, kind)
    try:
        target.write(address, _CURRENT, str(kind))
    except OSError:
        _mark(address, target.lease, _NOT_OURS)
        raise
    # If this read fails, the mark stays: the vGPU exists, and the rollback deletes it.
    found = _current(target, address)
    if found != kind:
        _mark(address, target.lease, _NOT_OURS)
        raise _without_effect(found, kind)


@privsep.base.step
def delete_vgpu(target: StepTarget) -> None:
    """Delete the vGPU of a lease; do nothing if the lease has none.

    :raises OSError: EBUSY: a process holds it; ENODATA: no file names its lease; EIO:
        the driver has not deleted it; or the driver's refusal.
    """
    address = _address(target)
    owner, kind = _mark_of(address)
    if owner and owner not in _leases(target, address):
        return
    try:
        found = _current(target, address)
    except FileNotFoundError:
        # The driver has left the VF, and its vGPU went with it.
        found = 0
    if found and not owner:
        text = f"no mark names the lease of the vGPU of type {found}"
        raise OSError(errno.ENODATA, text, _CURRENT)
    # Another type is another tool's vGPU.
    if found and found == kind:
        group = pci_functions.group(address)
        if group is not None and pci_functions.probe_group(group) == errno.EBUSY:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), _CURRENT)
        target.write(address, _CURRENT, "0")
        found = _current(target, address)
        if found:
            raise _without_effect(found, 0)
    _file(address).remove()


def _leases(target: StepTarget, address: PciAddress) -> tuple[str, ...]:
    """Return the lease of a step, and the lost one whose device it has taken over."""
    identity = pci_functions.identity(address)
    found = claims.record_of(address, identity) if identity else None
    if found is None or found.lease != target.lease or not found.first:
        return (target.lease,)
    return target.lease, found.first


def _address(target: StepTarget) -> PciAddress:
    """Return the VF of the lease; its IOMMU group may have lower functions."""
    if not isinstance(target.address, PciAddress):
        raise OSError(errno.EINVAL, f"{target.address} is no VF", _CURRENT)
    return target.address


def _current(target: StepTarget, address: PciAddress) -> int:
    return int(target.read(address, _CURRENT))


def _without_effect(found: int, kind: int) -> OSError:
    return OSError(errno.EIO, f"is {found} after a write of {kind}", _CURRENT)


def _mark_of(address: PciAddress) -> tuple[str, int]:
    """Return the lease that has created the vGPU, and its type; ('', 0) for none."""
    text = _file(address).read()
    if text is None:
        return "", 0
    lease, _, kind = text.partition(" ")
    return lease, int(kind)


def _mark(address: PciAddress, lease: str, kind: int) -> None:
    _file(address).replace(f"{lease} {kind}")


def _file(address: PciAddress) -> StateFile:
    return StateFile(f"{LOCKS}/{address}.vgpu")
