# SPDX-License-Identifier: Apache-2.0

"""Flexible resources of an NVMe drive with VFs (Virtualization Management).

NVM Express Base Specification 2.0, sections 5.26 and 8.26. VFs are offline, without
resources, whenever they are made, and after a reset of the PF. The nvme driver leaves
one that is offline. QEMU has all this without bit 7 of OACS.
"""

from __future__ import annotations

import dataclasses
import struct

from os_acc.testing import functions, records
from os_acc.testing.device_specs import NvmeSpec
from os_acc.testing.tree import PRIVATE, Transaction

#: Private resources of the primary controller, and what a controller needs to run.
PRIVATE_RESOURCES, LEAST = (3, 2), (2, 1)
_PLACE = f"{PRIVATE}/nvme-resources"
_PRIMARY_ALLOCATE, _OFFLINE, _ASSIGN, _ONLINE = 0x1, 0x7, 0x8, 0x9
# Status codes: Invalid Field, Invalid Controller Identifier, Invalid Secondary
# Controller State, Invalid Number of Controller Resources, Invalid Resource Identifier.
_INVALID_FIELD, _NO_CONTROLLER, _WRONG_STATE = 0x2, 0x11F, 0x120
_WRONG_NUMBER, _TAKEN = 0x121, 0x122


@dataclasses.dataclass(frozen=True, slots=True)
class Secondary:
    """The state of a VF's controller; the resources are queues and interrupts."""

    resources: tuple[int, ...] = (0, 0)
    is_online: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Resources:
    """The flexible resources of a drive: those of the primary and of each VF.

    :ivar pending: of the primary controller, after its next reset.
    """

    primary: tuple[int, ...]
    pending: tuple[int, ...]
    vfs: tuple[Secondary, ...] = ()

    @property
    def assigned(self) -> tuple[int, ...]:
        """What the VFs have."""
        each = [vf.resources for vf in self.vfs] or [(0, 0)]
        return tuple(map(sum, zip(*each, strict=True)))


def make_vfs(tree: Transaction, pf: str, count: int) -> None:
    """Make the controllers of VFs: offline."""
    if _total(tree, pf) != (0, 0):
        _write(
            tree, pf, dataclasses.replace(read(tree, pf), vfs=(Secondary(),) * count)
        )


def reset(tree: Transaction, address: str) -> None:
    """Reset a function: that of a PF activates an allocation, and ends its VFs."""
    if functions.physfn(tree, address) is None and _total(tree, address) != (0, 0):
        found = read(tree, address)
        _write(tree, address, dataclasses.replace(found, primary=found.pending))
        make_vfs(tree, address, len(found.vfs))


def runs(tree: Transaction, address: str) -> bool:
    """Return whether the nvme driver stays on a function."""
    pf = functions.physfn(tree, address)
    if pf is None or _total(tree, pf) == (0, 0):
        return True
    number = functions.spec(tree, pf).vf_index(address)
    return read(tree, pf).vfs[number].is_online


def read(tree: Transaction, pf: str) -> Resources:
    """Return the resources of a drive."""
    path = f"{_PLACE}/{pf}"
    if tree.exists(path):
        return records.load(Resources, tree.read(path))
    own = _total(tree, pf) if _spec(tree, pf).is_greedy else (0, 0)
    return Resources(own, own)


def capabilities(tree: Transaction, pf: str) -> bytes:
    """Return the Primary Controller Capabilities (CNS 14h)."""
    found, vfs = read(tree, pf), _vf_limit(tree, pf)
    data = bytearray(4096)
    data[4] = 0b11
    for at, which in ((32, 0), (64, 1)):
        total = _total(tree, pf)[which]
        numbers = (total, found.assigned[which], found.primary[which])
        own = (PRIVATE_RESOURCES[which], total // vfs, 1)
        struct.pack_into("<IIHHHH", data, at, *numbers, *own)
    return bytes(data)


def secondaries(tree: Transaction, pf: str) -> list[Secondary]:
    """Return the VFs' controllers, in the order of the VFs."""
    count = len(functions.vfs(tree, pf))
    if _total(tree, pf) == (0, 0):
        return [Secondary(LEAST, is_online=True)] * count
    return list(read(tree, pf).vfs[:count])


def manage(tree: Transaction, pf: str, cdw10: int, count: int) -> int:
    """Do as Virtualization Management; return the status."""
    action, which, number = cdw10 & 0xF, cdw10 >> 8 & 0b111, cdw10 >> 16
    found, total = read(tree, pf), _total(tree, pf)
    if action == _PRIMARY_ALLOCATE and which < 2:
        if count > total[which] - found.assigned[which]:
            return _WRONG_NUMBER
        pending = _with(found.pending, which, count)
        _write(tree, pf, dataclasses.replace(found, pending=pending))
        return 0
    if not 1 <= number <= len(found.vfs):
        return _NO_CONTROLLER
    vf = found.vfs[number - 1]
    if action == _ASSIGN and which < 2:
        if vf.is_online:
            return _WRONG_STATE
        if count > total[which] // _vf_limit(tree, pf):
            return _WRONG_NUMBER
        taken = found.primary[which] + found.assigned[which] - vf.resources[which]
        if taken + count > total[which]:
            return _TAKEN
        changed = Secondary(_with(vf.resources, which, count))
    elif action == _ONLINE:
        if any(map(int.__lt__, vf.resources, LEAST)):
            return _WRONG_STATE
        changed = dataclasses.replace(vf, is_online=True)
    elif action == _OFFLINE:
        changed = Secondary()
    else:
        return _INVALID_FIELD
    vfs = (*found.vfs[: number - 1], changed, *found.vfs[number:])
    _write(tree, pf, dataclasses.replace(found, vfs=vfs))
    return 0


def _with(numbers: tuple[int, ...], which: int, value: int) -> tuple[int, ...]:
    return (value, numbers[1]) if which == 0 else (numbers[0], value)


def _spec(tree: Transaction, pf: str) -> NvmeSpec:
    return functions.spec(tree, pf).nvme or NvmeSpec()


def _total(tree: Transaction, pf: str) -> tuple[int, int]:
    spec = _spec(tree, pf)
    return spec.vq_flexible, spec.vi_flexible


def _vf_limit(tree: Transaction, pf: str) -> int:
    sriov = functions.spec(tree, pf).sriov
    return sriov.total if sriov else 1


def _write(tree: Transaction, pf: str, found: Resources) -> None:
    tree.put(f"{_PLACE}/{pf}", records.dump(found))
