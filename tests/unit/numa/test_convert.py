# SPDX-License-Identifier: Apache-2.0

"""Objects that behave as Nova's are converted to values and back.

Nova's own objects are tested in ``tests/functional/nova/test_numa_convert.py``.
"""

from types import SimpleNamespace
from typing import Any

import pytest

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


class Versioned:
    """Raises on access to an unset field, as oslo.versionedobjects does."""

    def __init__(self, **fields: Any) -> None:
        self._fields = fields

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._fields:
            raise NotImplementedError(f"Cannot load {name!r} in the base class")
        return self._fields[name]


CLASSES = SimpleNamespace(
    NetworkMetadata=Versioned,
    NUMATopology=Versioned,
    NUMACell=Versioned,
    NUMAPagesTopology=Versioned,
    InstanceNUMATopology=Versioned,
    InstanceNUMACell=Versioned,
)

HOST = NUMATopology(
    (
        NUMACell(
            id=0,
            cpuset=frozenset({0, 1}),
            pcpuset=frozenset({2, 3}),
            memory=4096,
            siblings=(frozenset({0, 2}), frozenset({1, 3})),
            mempages=(MemoryPages(4, 1000), MemoryPages(2048, 512, 3, 9)),
            socket=1,
            network_info=NUMANetworkInfo(frozenset({"foo"}), tunneled=True),
            cpu_usage=7,
            memory_usage=512,
            pinned_cpus=frozenset({3}),
        ),
        NUMACell(id=1),
    )
)
GUEST = InstanceNUMATopology(
    (
        InstanceNUMACell(
            cpuset=frozenset({0}),
            pcpuset=frozenset({1, 2}),
            memory=2048,
            pagesize=-2,
            cpu_policy=CPUPolicy.MIXED,
            cpu_thread_policy=CPUThreadPolicy.ISOLATE,
        ),
        InstanceNUMACell(cpuset=frozenset({3})),
    ),
    emulator_threads_isolated=True,
)


def test_what_goes_to_nova_comes_back_the_same():
    assert convert.host_from_nova(to_nova.host_to_nova(HOST, CLASSES)) == HOST
    assert convert.guest_from_nova(to_nova.guest_to_nova(GUEST, CLASSES)) == GUEST
    networks = InstanceNUMANetworks(frozenset({"foo"}), tunneled=True)
    metadata = to_nova.networks_to_nova(networks, CLASSES)
    assert convert.networks_from_nova(metadata) == networks


def test_what_is_not_set_is_empty():
    assert convert.networks_from_nova(Versioned()) == InstanceNUMANetworks()
    assert convert.networks_from_nova(Versioned(tunneled=True)).tunneled
    assert convert.networks_from_nova(Versioned(physnets={"a"})).physnets == {"a"}
    assert convert.host_from_nova(Versioned()) == NUMATopology()
    bare = Versioned(cells=[Versioned(id=3)])
    assert convert.host_from_nova(bare) == NUMATopology((NUMACell(3),))
    bare = Versioned(cells=[Versioned()])
    assert convert.guest_from_nova(bare).cells == (InstanceNUMACell(),)


def test_what_is_not_there_is_empty():
    assert convert.networks_from_nova(None) == InstanceNUMANetworks()
    assert convert.host_from_nova(None) == NUMATopology()
    assert convert.guest_from_nova(None) == InstanceNUMATopology()


def test_values_that_nova_has_as_null_are_defaults():
    cell = Versioned(cpu_policy=None, cpu_thread_policy=None, pagesize=None)
    guest = Versioned(cells=[cell], emulator_threads_policy=None)
    assert convert.guest_from_nova(guest).cells == (InstanceNUMACell(),)
    assert not convert.guest_from_nova(guest).emulator_threads_isolated


def test_cells_and_pages_are_put_in_order():
    pages = [Versioned(size_kb=size, total=1) for size in (1048576, 4, 2048)]
    cells = [Versioned(id=8), Versioned(id=0, mempages=pages)]
    host = convert.host_from_nova(Versioned(cells=cells))
    assert [cell.id for cell in host.cells] == [0, 8]
    assert [each.size_kb for each in host.cells[0].mempages] == [4, 2048, 1048576]


def test_a_host_cell_needs_an_id():
    with pytest.raises(InvalidInput, match="no id"):
        convert.host_from_nova(Versioned(cells=[Versioned()]))


NOTHING = InstanceNUMANetworks()
TUNNEL = InstanceNUMANetworks(tunneled=True)


@pytest.mark.parametrize("network_type", ["flat", "vlan"])
def test_flat_networks_and_vlans_need_their_physical_network(network_type):
    asked = requested([Network(network_type, "physnet0")])
    assert asked == InstanceNUMANetworks(frozenset({"physnet0"}))


@pytest.mark.parametrize("network_type", ["gre", "vxlan", "geneve"])
def test_tunnels_need_the_tunnel(network_type):
    assert requested([Network(network_type)]) == TUNNEL


@pytest.mark.parametrize("network_type", ["local", "opflex", "", "VLAN", None])
def test_any_other_network_needs_nothing(network_type):
    assert requested([Network(network_type)]) == NOTHING
    assert requested([Network(network_type, "physnet0")]) == NOTHING


@pytest.mark.parametrize("name", [None, ""])
def test_a_network_whose_physical_network_is_not_told_needs_nothing(name):
    assert requested([Network("vlan", name)]) == NOTHING


def test_several_networks_are_one_request():
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
