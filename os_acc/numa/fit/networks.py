# SPDX-License-Identifier: Apache-2.0

"""Check that a guest's cells have access to its networks.

The rule is that of the specification of NUMA-aware virtual switches, and of
Nova's ``_numa_cells_support_network_metadata``: one of the cells is enough,
and a network that no cell of the host declares is reachable from any cell.

The specification distinguishes two kinds of networks: flat networks and VLANs
use the interface of their physical network; all tunnels share one other
interface. Neutron provides the type and the physical network of a network
(``provider:network_type``, ``provider:physical_network``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from typing import Final

from os_acc.objects.numa import InstanceNUMANetworks, NUMATopology

#: A guest without networks, or without networks of known affinity.
NO_NETWORKS: Final = InstanceNUMANetworks()


def not_carried(
    topology: NUMATopology, cells: Collection[int], networks: InstanceNUMANetworks
) -> InstanceNUMANetworks:
    """Return the networks that are declared by other cells only.

    :param cells: ids of the host cells of the guest.
    """
    return InstanceNUMANetworks(
        frozenset(
            name
            for name in networks.physnets
            if _elsewhere(cells_of_physnet(topology, name), cells)
        ),
        networks.tunneled and _elsewhere(cells_of_tunnels(topology), cells),
    )


def cells_of_physnet(topology: NUMATopology, name: str) -> frozenset[int]:
    """Return the ids of the cells that declare a physical network; none: any cell."""
    return frozenset(
        cell.id for cell in topology.cells if name in cell.network_info.physnets
    )


def cells_of_tunnels(topology: NUMATopology) -> frozenset[int]:
    """Return the ids of the cells that declare tunnels; none: any cell."""
    return frozenset(cell.id for cell in topology.cells if cell.network_info.tunneled)


def _elsewhere(declared: frozenset[int], cells: Collection[int]) -> bool:
    return bool(declared) and declared.isdisjoint(cells)


PHYSICAL: Final = frozenset({"flat", "vlan"})
#: The types of Nova (``L3_NETWORK_TYPES`` in ``nova/network/constants.py``).
TUNNELED: Final = frozenset({"geneve", "gre", "vxlan"})


@dataclasses.dataclass(frozen=True, slots=True)
class Network:
    """A network as shown by Neutron to administrators.

    :ivar network_type: ``flat``, ``vlan``, ``vxlan`` ...; None: unknown.
    :ivar physical_network: set for flat networks and VLANs.
    """

    network_type: str | None = None
    physical_network: str | None = None

    @property
    def needs(self) -> InstanceNUMANetworks:
        """The NUMA requirement of this network.

        A ``local`` network stays on the host, and the path of a type specific to
        some back end is unknown: neither has a requirement. Nova considers the
        physical network alone, of any type.
        """
        if self.network_type in PHYSICAL and self.physical_network:
            return InstanceNUMANetworks(frozenset({self.physical_network}))
        return InstanceNUMANetworks(tunneled=self.network_type in TUNNELED)


def requested(networks: Iterable[Network]) -> InstanceNUMANetworks:
    """Return the combined requirement of all networks of a guest."""
    return merged(network.needs for network in networks)


def merged(requests: Iterable[InstanceNUMANetworks]) -> InstanceNUMANetworks:
    """Merge several requirements into one."""
    every = tuple(requests)
    return InstanceNUMANetworks(
        frozenset[str]().union(*(each.physnets for each in every)),
        any(each.tunneled for each in every),
    )
