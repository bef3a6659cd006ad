# SPDX-License-Identifier: Apache-2.0

"""Let the scheduler choose the host cells of a guest, by Nova's own means.

Nova places a guest that uses a physical network in the cells of this network
("NUMA-aware vSwitches"), in the scheduler and in the claim on the host alike. This
module gives each cell of a host a network that no port uses. A claim whose limits name
this network binds the guest to the cell. On a host without such networks, the limits
have no effect
(``_numa_cells_support_network_metadata`` in ``nova/virt/hardware.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def network_of(cell: int) -> str:
    """Return the name of the network of a host cell."""
    return f"os-acc:numa-cell-{cell}"


def declare(topology: Any) -> Any:
    """Add its network to each cell of a host.

    :param topology: a new ``nova.objects.NUMATopology``, or None.
    :returns: the same object.
    """
    for cell in () if topology is None else topology.cells:
        metadata = cell.network_metadata
        metadata.physnets = {*metadata.physnets, network_of(cell.id)}
    return topology


def bound(limits: Any, cells: Iterable[int], objects: Any) -> Any:
    """Return limits that bind a guest to cells; unlimited resources cannot.

    :param limits: a ``nova.objects.NUMATopologyLimits``, or None; it is not changed.
    :param objects: ``nova.objects`` after ``register_all()``.
    """
    names = set(map(network_of, cells))
    if limits is None or not names:
        return limits
    found = limits.network_metadata if "network_metadata" in limits else None
    result = limits.obj_clone()
    result.network_metadata = objects.NetworkMetadata(
        physnets=names | (set(found.physnets) if found else set()),
        tunneled=bool(found and found.tunneled),
    )
    return result
