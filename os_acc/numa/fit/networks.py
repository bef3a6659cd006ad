# SPDX-License-Identifier: Apache-2.0

"""Whether a guest's cells are where its networks leave the host.

The rule is that of the specification of NUMA-aware virtual switches, and of
Nova's ``_numa_cells_support_network_metadata``: one of the cells is enough,
and a network that no cell of the host declares is carried anywhere.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from os_acc.objects.numa import InstanceNUMANetworks, NUMATopology

#: Of a guest that has none, or none that matters.
NO_NETWORKS: Final = InstanceNUMANetworks()


def not_carried(
    topology: NUMATopology, cells: Collection[int], networks: InstanceNUMANetworks
) -> InstanceNUMANetworks:
    """Those networks that leave the host in other cells than these.

    :param cells: ids of the host's cells that the guest has.
    """
    return InstanceNUMANetworks(
        frozenset(
            name
            for name in networks.physnets
            if _elsewhere(cells_of_physnet(topology, name), cells)
        ),
        networks.tunneled and _elsewhere(cells_of_tunnels(topology), cells),
    )


def carried(
    topology: NUMATopology, cells: Collection[int], networks: InstanceNUMANetworks
) -> bool:
    """Whether none of them leaves the host elsewhere."""
    return not_carried(topology, cells, networks) == NO_NETWORKS


def cells_of_physnet(topology: NUMATopology, name: str) -> frozenset[int]:
    """Ids of the cells that a physical network leaves the host in; none: any."""
    return frozenset(
        cell.id for cell in topology.cells if name in cell.network_info.physnets
    )


def cells_of_tunnels(topology: NUMATopology) -> frozenset[int]:
    """Ids of the cells that GRE and VXLAN leave the host in; none: any."""
    return frozenset(cell.id for cell in topology.cells if cell.network_info.tunneled)


def _elsewhere(declared: frozenset[int], cells: Collection[int]) -> bool:
    return bool(declared) and declared.isdisjoint(cells)
