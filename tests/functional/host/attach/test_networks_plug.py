# SPDX-License-Identifier: Apache-2.0

"""A plug takes the guest's networks beside its cells.

Specification: NUMA-aware virtual switches. The rule is that of ``os_acc.numa``: one of
the guest's cells has to lead to each network with known NUMA nodes.
"""

from __future__ import annotations

import pytest

from os_acc import exception
from os_acc.host import numa
from os_acc.testing import TestHost, instance, request, uuid_of
from os_acc.testing.test_host import config_of
from tests.expected_errors import has
from tests.unit.numa.test_network_options import WORKED_EXAMPLE

GPU = "0000:17:00.0"


@pytest.fixture
def host(bench, tmp_path) -> TestHost:
    """Return a host: physnet0 leaves by node 0, physnet1 by both, tunnels by 1."""
    path = tmp_path / "nova.conf"
    path.write_text(WORKED_EXAMPLE.replace("\n ", "\n"))
    bench._read = lambda: config_of(path)
    bench.restart()
    return bench


def plug(host: TestHost, *physnets: str, tunneled: bool = False, cells=(0,)):
    selected, specs = request(host.provider(GPU))
    specs["accel1:numa_policy"] = "preferred"
    mine = instance(1) | {
        "numa_cells": cells,
        "networks": {"physnets": list(physnets), "tunneled": tunneled},
    }
    return host.manager.plug(mine, selected, specs)


def refused(match: str):
    return pytest.raises(
        exception.NoDeviceAvailable,
        check=has(reason=exception.NoDeviceReason.NETWORK, elsewhere=True),
        match=match,
    )


@pytest.mark.parametrize(
    ("physnets", "tunneled", "cells"),
    [
        (("physnet0",), False, (0,)),
        (("physnet0", "physnet1"), True, (0, 1)),
        (("unlisted",), False, (1,)),
    ],
)
def test_plug_takes_the_guest_s_networks_beside_its_cells(
    host, physnets, tunneled, cells
):
    (entry,) = plug(host, *physnets, tunneled=tunneled, cells=cells)
    assert entry["pci_id"] == GPU


@pytest.mark.parametrize(
    ("physnets", "tunneled", "cells", "named"),
    [
        ((), True, (0,), "tunnelled networks"),
        (("physnet1", "physnet0"), True, (1,), "physnet0"),
    ],
)
def test_a_guest_whose_cells_do_not_lead_to_its_network_is_refused(
    host, physnets, tunneled, cells, named
):
    before = host.kernel.snapshot()
    with refused(named) as caught:
        plug(host, *physnets, tunneled=tunneled, cells=cells)
    assert "physnet1" not in str(caught.value)
    assert uuid_of(1) in str(caught.value)
    assert host.kernel.snapshot() == before
    assert host.manager.store.leases() == ()


def test_a_host_without_options_of_networks_does_not_read_its_nodes(bench, monkeypatch):
    bench.manager.discover()
    selected, specs = request(bench.provider(GPU))
    mine = instance(1) | {"numa_cells": [0]}
    entries = bench.manager.plug(mine, selected, specs)
    monkeypatch.setattr(numa, "read_topology", None)
    mine["networks"] = {"physnets": ["a"]}
    assert bench.manager.plug(mine, selected, specs) == entries


def test_interfaces_that_come_later_have_no_affinity_until_a_resize(host):
    """Specification: "any interfaces attached after this will not have NUMA affinity".

    "A resize operation or similar can be used after attaching new interfaces."
    """
    entries = plug(host, "physnet0")
    later = instance(1) | {"numa_cells": [0], "networks": {"tunneled": True}}
    assert host.manager.plug(later, None, None) == entries
    # A hard reboot may repeat the request.
    assert plug(host, "physnet0", tunneled=True) == entries
    # The resize of a host is a plug with a selection.
    host.unplug(1)
    with refused("tunnelled"):
        plug(host, "physnet0", tunneled=True)
    assert plug(host, "physnet0", tunneled=True, cells=(0, 1))


def test_a_repeated_plug_with_other_cells_considers_the_networks(host):
    """Specification: cached information is updated "in the event of a move"."""
    entries = plug(host, "physnet0")
    with refused("physnet0"):
        plug(host, "physnet0", cells=(1,))
    assert host.manager.store.leases()[0].guest.cells == (0,)
    assert plug(host, "physnet0", tunneled=True, cells=(0, 1)) == entries
    assert host.manager.store.leases()[0].guest.cells == (0, 1)


def test_cells_that_become_known_later_consider_the_networks(host):
    plug(host, "physnet0", cells=())
    with refused("physnet0"):
        plug(host, "physnet0", cells=(1,))
    assert plug(host, "physnet0", cells=(0,))


def test_a_server_without_accelerators_is_not_refused_for_its_networks(host):
    """Nova's own claim fits the guest to its networks."""
    mine = instance(1) | {"numa_cells": [0], "networks": {"tunneled": True}}
    selected = {"allocations": {uuid_of(77): {"resources": {"VCPU": 1}}}}
    assert host.manager.plug(mine, selected, {}) == []


@pytest.mark.parametrize(
    ("networks", "named"),
    [
        (7, "7"),
        ({"physnet": ["a"]}, "physnet"),
        ({"physnets": "a"}, "'a'"),
        ({"physnets": [1]}, "[1]"),
        ({"physnets": {"a": 1}}, "{'a': 1}"),
        ({"tunneled": 1}, "1"),
    ],
)
def test_wrong_networks_are_named(host, networks, named):
    selected, specs = request(host.provider(GPU))
    with pytest.raises(exception.InvalidInput) as caught:
        host.manager.plug(instance(1) | {"networks": networks}, selected, specs)
    assert "instance_info['networks']" in str(caught.value)
    assert named in str(caught.value)
    assert host.manager.store.leases() == ()


def test_a_cell_that_the_host_does_not_have_is_named_first(host):
    with pytest.raises(exception.InvalidInput, match="numa_cells"):
        plug(host, "physnet0", cells=(7,))
