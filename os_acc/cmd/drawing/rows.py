# SPDX-License-Identifier: Apache-2.0

"""The tree as rows for programs: one for each socket, cell and function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from os_acc.cmd.drawing import labels, tree
from os_acc.cmd.drawing.snapshot import HostSnapshot
from os_acc.objects.mdev import function_of
from os_acc.objects.pci import PciAddress, PciFunction

COLUMNS = (
    "Kind",
    "Name",
    "Below",
    "NUMA Node",
    "Resource Class",
    "State",
    "Consumer",
    "Instance Name",
    "Model",
    "Driver",
    "IOMMU Group",
    "Reason",
)
#: Additional columns for a given guest.
MORE = ("Affinity", "Policies")


def rows(snapshot: HostSnapshot) -> Iterator[tuple[Any, ...]]:
    """Yield the tree of ``--long``, in ``COLUMNS``, and ``MORE`` for a guest."""
    cells = snapshot.topology.cells
    blank = (None,) * (len(COLUMNS) - 4)
    for socket in sorted({cell.socket for cell in cells if cell.socket is not None}):
        nothing = (None, None) if snapshot.guest else ()
        yield ("socket", f"socket {socket}", None, None, *blank, *nothing)
    for cell in cells:
        below = None if cell.socket is None else f"socket {cell.socket}"
        name = f"cell {cell.id}"
        yield ("cell", name, below, cell.id, *blank, *_affinity(snapshot, cell.id))
    trees = tree.plant(snapshot, everything=True)
    known = {cell.id for cell in cells}
    states = filter(None, map(function_of, snapshot.states))
    for address in sorted({*snapshot.functions, *states}):
        function = snapshot.functions.get(address)
        node = function.numa_node if function else None
        above = trees.above.get(address)
        below = f"cell {node}" if node in known else None
        yield (
            _kind(function),
            str(address),
            str(above) if above else below,
            node,
            *_device(snapshot, address, function),
            *(
                _affinity(snapshot, node)
                if function
                else (None for _column in (MORE if snapshot.guest else ()))
            ),
        )


def _kind(function: PciFunction | None) -> str:
    if function is None:
        return "gone"
    return "bridge" if function.is_bridge else function.role.value


def _device(
    snapshot: HostSnapshot, address: PciAddress, function: PciFunction | None
) -> Iterator[Any]:
    device = snapshot.states.get(address)
    lease = device.lease if device else None
    yield device.resource_class if device else None
    yield device.state.value if device else None
    yield lease.consumer if lease else None
    yield (lease.guest.name or None) if lease else None
    yield snapshot.models.short(function.identity) if function else None
    yield function.driver if function else None
    yield function.iommu_group if function else None
    yield (device.reason or None) if device else None


def _affinity(snapshot: HostSnapshot, node: int | None) -> Iterator[Any]:
    found = snapshot.affinity(node)
    if found is not None:
        yield found.name.lower()
        yield [policy.value for policy in labels.allowing(found)]
