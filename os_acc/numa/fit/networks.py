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
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from os_acc.objects.numa import InstanceNUMANetworks, NUMATopology

#: A guest without networks, or without networks of known affinity.
NO_NETWORKS: Final = InstanceNUMANetworks()


def declared(
    topology: NUMATopology, networks: InstanceNUMANetworks
) -> Iterator[tuple[str | None, frozenset[int]]]:
    """Yield the networks that some cells declare, with the ids of these cells.

    A network is a physical network; None stands for the tunnels.
    """
    wanted: list[str | None] = [*sorted(networks.physnets)]
    for name in wanted + [None] * networks.tunneled:
        cells = frozenset(
            cell.id
            for cell in topology.cells
            if name in cell.network_info.physnets
            or (name is None and cell.network_info.tunneled)
        )
        if cells:
            yield name, cells


def not_carried(
    topology: NUMATopology, cells: Collection[int], networks: InstanceNUMANetworks
) -> InstanceNUMANetworks:
    """Return the networks that are declared by other cells only.

    :param cells: ids of the host cells of the guest.
    """
    missing = {
        name for name, at in declared(topology, networks) if at.isdisjoint(cells)
    }
    physnets = frozenset(name for name in missing if name is not None)
    return InstanceNUMANetworks(physnets, None in missing)


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
    needs = [network.needs for network in networks]
    return InstanceNUMANetworks(
        frozenset[str]().union(*(each.physnets for each in needs)),
        any(each.tunneled for each in needs),
    )
