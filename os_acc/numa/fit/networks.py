# SPDX-License-Identifier: Apache-2.0

"""Check that a guest's cells are where its networks leave the host.

The rule is that of the specification of NUMA-aware virtual switches, and of
Nova's ``_numa_cells_support_network_metadata``: one of the cells is enough,
and a network that no cell of the host declares can be reached from any cell.

The specification distinguishes two kinds of networks: traffic of flat networks
and VLANs leaves the host by the interface of its physical network, traffic of
all tunnels by one other interface. Neutron provides the type and the physical
network of a network (``provider:network_type``, ``provider:physical_network``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
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


PHYSICAL: Final = frozenset({"flat", "vlan"})
#: Those of Nova (``L3_NETWORK_TYPES`` in ``nova/network/constants.py``).
TUNNELED: Final = frozenset({"geneve", "gre", "vxlan"})


@dataclasses.dataclass(frozen=True, slots=True)
class Network:
    """One network, as Neutron describes it to administrators.

    :ivar network_type: ``flat``, ``vlan``, ``vxlan`` ...; None: it is not told.
    :ivar physical_network: of flat networks and VLANs.
    """

    network_type: str | None = None
    physical_network: str | None = None

    @property
    def needs(self) -> InstanceNUMANetworks:
        """What this network alone asks for.

        A ``local`` network does not leave the host, and of a type that only some
        back end knows it is not known how it does: neither asks for anything.
        Nova goes by the physical network alone, and takes it of any type.
        """
        if self.network_type in PHYSICAL and self.physical_network:
            return InstanceNUMANetworks(frozenset({self.physical_network}))
        return InstanceNUMANetworks(tunneled=self.network_type in TUNNELED)


def requested(networks: Iterable[Network]) -> InstanceNUMANetworks:
    """What all networks of a guest ask for together."""
    return merged(network.needs for network in networks)


def merged(requests: Iterable[InstanceNUMANetworks]) -> InstanceNUMANetworks:
    """Several requests as one."""
    every = tuple(requests)
    return InstanceNUMANetworks(
        frozenset[str]().union(*(each.physnets for each in every)),
        any(each.tunneled for each in every),
    )
