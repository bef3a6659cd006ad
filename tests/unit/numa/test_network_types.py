# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import pytest

from os_acc.numa.fit.networks import Network, requested
from os_acc.objects.numa import InstanceNUMANetworks

NOTHING = InstanceNUMANetworks()
TUNNEL = InstanceNUMANetworks(tunneled=True)


@pytest.mark.parametrize("network_type", ["flat", "vlan"])
def test_flat_networks_and_vlans_need_their_physical_network(network_type: str) -> None:
    asked = requested([Network(network_type, "physnet0")])
    assert asked == InstanceNUMANetworks(frozenset({"physnet0"}))


@pytest.mark.parametrize("network_type", ["gre", "vxlan", "geneve"])
def test_tunnels_need_the_tunnel(network_type: str) -> None:
    assert requested([Network(network_type)]) == TUNNEL


@pytest.mark.parametrize("network_type", ["local", "opflex", "", "VLAN", None])
def test_any_other_network_needs_nothing(network_type: str | None) -> None:
    assert requested([Network(network_type)]) == NOTHING
    assert requested([Network(network_type, "physnet0")]) == NOTHING


@pytest.mark.parametrize("name", [None, ""])
def test_a_network_whose_physical_network_is_not_told_needs_nothing(
    name: str | None,
) -> None:
    assert requested([Network("vlan", name)]) == NOTHING


def test_several_networks_are_one_request() -> None:
    asked = requested(
        [
            Network("vlan", "physnet0"),
            Network("flat", "physnet1"),
            Network("vlan", "physnet0"),
            Network("vxlan"),
            Network("local"),
        ]
    )
    assert asked == InstanceNUMANetworks(frozenset({"physnet0", "physnet1"}), True)
