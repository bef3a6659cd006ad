# SPDX-License-Identifier: Apache-2.0

"""vGPUs of NVIDIA's driver on virtual functions, as Linux 6.8 and later has them.

NVIDIA vGPU Software User Guide, "Creating an NVIDIA vGPU on a Linux with KVM hypervisor
that uses a vendor-specific VFIO framework". By default the vGPUs of a card have equal
sizes. The driver answers EPERM to a type of 0 while a guest has the vGPU. No hardware
has confirmed the error numbers for an invalid type and for a VF that is a vGPU already.
"""

from __future__ import annotations

import errno
from typing import Final

from os_acc.testing import functions, holders
from os_acc.testing.device_specs import AttributeSpec, SimulatedFunction
from os_acc.testing.tree import refuse
from os_acc.testing.vendor_attributes import TreeFunction

CURRENT: Final = "nvidia/current_vgpu_type"
CREATABLE: Final = "nvidia/creatable_vgpu_types"

#: The size of the card's memory, in GiB.
_MEMORY: Final = 48
#: The name and the size of each type, by its number.
_TYPES: Final = {
    1146: ("NVIDIA L40-1Q", 1),
    1152: ("NVIDIA L40-12Q", 12),
    1154: ("NVIDIA L40-24Q", 24),
    1155: ("NVIDIA L40-48Q", 48),
}


def attributes() -> tuple[AttributeSpec, ...]:
    """Return the attributes of a VF that is no vGPU."""
    return (
        AttributeSpec(CURRENT, "0", set_type),
        AttributeSpec(CREATABLE, _listed(_TYPES)),
    )


def set_type(function: SimulatedFunction, text: str) -> None:
    """Create the vGPU of a VF, or delete it with a type of 0."""
    assert isinstance(function, TreeFunction)
    pf, kind = function.physfn, text.strip()
    if pf is None or not kind.isdecimal():
        raise refuse(errno.EINVAL, function.address)
    tree, address = function.tree, function.address
    if kind == "0":
        if holders.holds(tree, address):
            raise refuse(errno.EPERM, address)
        if function.read(CURRENT) != "0":
            function.leave_vfio()
    elif function.read(CURRENT) != "0":
        raise refuse(errno.EBUSY, address)
    elif int(kind) not in _types_in(function.read(CREATABLE)):
        raise refuse(errno.EINVAL, address)
    else:
        function.enter_vfio()
    function.write(CURRENT, str(int(kind)))
    _refresh(function, functions.vfs(tree, pf))


def _refresh(function: SimulatedFunction, vfs: list[str]) -> None:
    """List for each VF of a card the types for which the card has memory now."""
    used = {vf: int(function.read(CURRENT, vf)) for vf in vfs}
    sizes = [_TYPES[kind][1] for kind in used.values() if kind]
    fitting = [
        kind
        for kind, (_name, size) in _TYPES.items()
        if size <= _MEMORY - sum(sizes) and set(sizes) <= {size}
    ]
    for vf, kind in used.items():
        function.write(CREATABLE, _listed(() if kind else fitting), vf)


def _types_in(text: str) -> list[int]:
    """Return the types of a list; its first line is the title."""
    return [int(line.partition(":")[0]) for line in text.splitlines()[1:]]


def _listed(kinds: object) -> str:
    assert isinstance(kinds, dict | list | tuple)
    lines = [f"{kind:<6}: {_TYPES[kind][0]}" for kind in kinds]
    return "\n".join(["ID    : vGPU Name", *lines])
