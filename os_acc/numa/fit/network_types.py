# SPDX-License-Identifier: Apache-2.0

"""What the networks of a guest ask of its cells, by how they are carried.

The specification of NUMA-aware virtual switches divides them: the traffic of
flat networks and VLANs leaves the host by the interface of its physical network,
that of all tunnels by one other. Who knows a network's type and physical network
is Neutron (``provider:network_type``, ``provider:physical_network``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final

from os_acc.objects.numa import InstanceNUMANetworks

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
