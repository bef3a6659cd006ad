# SPDX-License-Identifier: Apache-2.0

"""A conversion from os_acc's values to Nova's objects and back changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nova import objects
from nova.network import neutron

from os_acc.exception import InvalidInput
from os_acc.numa import convert
from os_acc.numa.convert import Network, requested
from os_acc.objects.numa import (
    CPUPolicy,
    CPUThreadPolicy,
    InstanceNUMACell,
    InstanceNUMANetworks,
    InstanceNUMATopology,
    MemoryPages,
    NUMACell,
    NUMANetworkInfo,
    NUMATopology,
)
from tests.unit.numa import to_nova


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    objects.register_all()


cpus = st.frozensets(st.integers(0, 127), max_size=6)
amounts = st.integers(0, 1 << 20)
names = st.frozensets(st.sampled_from(("foo", "bar", "physnet0")))
pages = st.builds(
    MemoryPages, st.sampled_from((4, 64, 2048, 1048576)), amounts, amounts, amounts
)
host_cells = st.builds(
    NUMACell,
    id=st.integers(0, 1023),
    cpuset=cpus,
    pcpuset=cpus,
    memory=amounts,
    siblings=st.lists(cpus, max_size=3).map(tuple),
    mempages=st.lists(pages, max_size=3, unique_by=lambda each: each.size_kb).map(
        lambda found: tuple(sorted(found, key=lambda each: each.size_kb))
    ),
    socket=st.none() | st.integers(0, 7),
    network_info=st.builds(NUMANetworkInfo, names, st.booleans()),
    cpu_usage=amounts,
    memory_usage=amounts,
    pinned_cpus=cpus,
)
hosts = st.lists(host_cells, max_size=4, unique_by=lambda cell: cell.id).map(
    lambda cells: NUMATopology(tuple(sorted(cells, key=lambda cell: cell.id)))
)
guest_cells = st.builds(
    InstanceNUMACell,
    cpuset=cpus,
    pcpuset=cpus,
    memory=amounts,
    pagesize=st.none() | st.sampled_from((-3, -2, -1, 4, 2048)),
    cpu_policy=st.sampled_from(CPUPolicy),
    cpu_thread_policy=st.none() | st.sampled_from(CPUThreadPolicy),
)
guests = st.builds(
    InstanceNUMATopology, st.lists(guest_cells, max_size=4).map(tuple), st.booleans()
)


def over_the_wire(made: Any) -> Any:
    """Serialize and parse an object, as between Nova's services."""
    return type(made).obj_from_primitive(made.obj_to_primitive())


@given(hosts)
@settings(max_examples=100, deadline=None)
def test_a_host_is_the_same_after_nova_has_had_it(host):
    made = over_the_wire(to_nova.host_to_nova(host, objects))
    assert convert.host_from_nova(made) == host


@given(guests)
@settings(max_examples=100, deadline=None)
def test_a_guest_is_the_same_after_nova_has_had_it(guest):
    made = over_the_wire(to_nova.guest_to_nova(guest, objects))
    assert convert.guest_from_nova(made) == guest
    assert made.emulator_threads_isolated == guest.emulator_threads_isolated


@given(st.builds(InstanceNUMANetworks, names, st.booleans()))
@settings(max_examples=50, deadline=None)
def test_networks_are_the_same_after_nova_has_had_them(networks):
    made = over_the_wire(to_nova.networks_to_nova(networks, objects))
    assert convert.networks_from_nova(made) == networks


def test_fields_that_nova_has_not_set_are_empty():
    assert convert.networks_from_nova(objects.NetworkMetadata()) == (
        InstanceNUMANetworks()
    )
    half = objects.NetworkMetadata(physnets={"foo"})
    assert convert.networks_from_nova(half).physnets == {"foo"}
    host = objects.NUMATopology(cells=[objects.NUMACell(id=2)])
    assert convert.host_from_nova(host) == NUMATopology((NUMACell(2),))
    guest = objects.InstanceNUMATopology(cells=[objects.InstanceNUMACell(id=0)])
    assert convert.guest_from_nova(guest).cells == (InstanceNUMACell(),)
    with pytest.raises(InvalidInput):
        convert.host_from_nova(objects.NUMATopology(cells=[objects.NUMACell()]))


def test_limits_carry_networks():
    metadata = objects.NetworkMetadata(physnets={"foo"}, tunneled=False)
    limits = objects.NUMATopologyLimits(
        cpu_allocation_ratio=16.0, ram_allocation_ratio=1.5, network_metadata=metadata
    )
    assert convert.networks_from_nova(limits.network_metadata).physnets == {"foo"}


def novas(networks: Sequence[Network]) -> InstanceNUMANetworks:
    """Return Nova's request for a guest that is created on these networks."""
    described = {
        str(number): {
            "provider:network_type": network.network_type,
            "provider:physical_network": network.physical_network,
        }
        for number, network in enumerate(networks)
    }
    api = neutron.API()
    client = mock.Mock()
    client.show_network.side_effect = lambda uuid, fields: {"network": described[uuid]}
    wanted = objects.NetworkRequestList(
        objects=[objects.NetworkRequest(network_id=uuid) for uuid in described]
    )
    with (
        mock.patch.object(neutron, "get_client", return_value=client),
        mock.patch.object(api, "has_multi_provider_extension", return_value=False),
        mock.patch.object(
            api, "has_extended_resource_request_extension", return_value=False
        ),
    ):
        metadata, *_ = api.create_resource_requests(None, wanted)
    return convert.networks_from_nova(metadata)


carried = st.one_of(
    st.builds(
        Network, st.sampled_from(("flat", "vlan")), st.sampled_from(("foo", "bar"))
    ),
    st.builds(Network, st.sampled_from(("gre", "vxlan", "geneve", "local", "opflex"))),
)


@given(st.lists(carried, max_size=5))
@settings(max_examples=200, deadline=None)
def test_networks_ask_for_what_nova_asks_for(networks):
    assert requested(networks) == novas(networks)


def test_only_nova_takes_a_physical_network_of_any_type():
    """The specification leaves types of single back ends out of its scope."""
    network = Network("opflex", "physnet0")
    assert novas([network]).physnets == {"physnet0"}
    assert requested([network]) == InstanceNUMANetworks()
