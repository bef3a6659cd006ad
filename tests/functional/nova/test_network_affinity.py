# SPDX-License-Identifier: Apache-2.0

"""os_acc and Nova's libvirt driver read the same NUMA nodes of networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nova import exception as nova_exception
from nova import objects
from nova.conf import neutron
from nova.virt.libvirt import driver
from oslo_config import cfg

from os_acc.exception import InvalidConfiguration
from os_acc.numa import convert, network_options
from os_acc.numa.network_options import NetworkAffinity
from os_acc.objects.numa import MemoryPages, NUMACell, NUMANetworkInfo, NUMATopology

HOST = NUMATopology(
    tuple(
        NUMACell(
            id=number,
            cpuset=frozenset({2 * number, 2 * number + 1}),
            pcpuset=frozenset({2 * number, 2 * number + 1}),
            memory=1024,
            siblings=(frozenset({2 * number, 2 * number + 1}),),
            mempages=(MemoryPages(4, 262144), MemoryPages(2048, 0)),
            socket=number // 2,
        )
        for number in range(4)
    )
)
CPUS = {cpu for cell in HOST.cells for cpu in cell.cpuset}

Register = Callable[[cfg.ConfigOpts], None]


@pytest.fixture(scope="module", autouse=True)
def registered() -> None:
    """Register Nova's objects, from which its driver builds a topology."""
    objects.register_all()


def register_statically(conf: cfg.ConfigOpts) -> None:
    """Register the options that Nova registers at import."""
    # Otherwise all configurations would share the values of one group.
    with mock.patch.object(neutron, "neutron_group", cfg.OptGroup("neutron")):
        neutron.register_opts(conf)


def configuration(
    physnets: Mapping[str, list[int] | None],
    tunnel: list[int],
    order: tuple[Register, ...],
) -> cfg.ConfigOpts:
    """Build options of Nova and of os_acc, registered in this order.

    :param physnets: None: listed without nodes.
    """
    conf = cfg.ConfigOpts()
    conf(args=[], default_config_files=[])
    register_statically(conf)
    conf.set_override("physnets", list(physnets), "neutron")
    for register in order:
        register(conf)
    conf.set_override("numa_nodes", tunnel, "neutron_tunnel")
    for name, nodes in physnets.items():
        if nodes is not None:
            conf.set_override("numa_nodes", nodes, f"neutron_physnet_{name}")
    return conf


def capabilities() -> Any:
    """Return the same host in the form of libvirt."""
    cells = [
        SimpleNamespace(
            id=cell.id,
            memory=cell.memory * 1024,
            mempages=[
                SimpleNamespace(size=pages.size_kb, total=pages.total)
                for pages in cell.mempages
            ],
            cpus=[
                SimpleNamespace(id=cpu, socket_id=cell.socket, siblings=cell.cpuset)
                for cpu in sorted(cell.cpuset)
            ],
        )
        for cell in HOST.cells
    ]
    return SimpleNamespace(host=SimpleNamespace(topology=SimpleNamespace(cells=cells)))


def novas(conf: cfg.ConfigOpts) -> NUMATopology:
    """Return the topology of Nova's libvirt driver for that host and these options."""
    libvirt = SimpleNamespace(
        _has_numa_support=lambda: True,
        _host=SimpleNamespace(get_capabilities=capabilities),
        _get_vcpu_available=lambda: CPUS,
        _get_pcpu_available=lambda: CPUS,
        _reserved_hugepages={},
    )
    with mock.patch.object(driver, "CONF", conf):
        topology = driver.LibvirtDriver._get_host_numa_topology(libvirt)
    return convert.host_from_nova(topology)


def ours(conf: cfg.ConfigOpts) -> NUMATopology:
    """Return os_acc's topology for the same host and options."""
    return NetworkAffinity.load(conf).on(HOST)


BOTH = (network_options.register, neutron.register_dynamic_opts)
orders = st.sampled_from((BOTH, BOTH[::-1], BOTH * 2))
#: The host has no nodes 4 and 9.
nodes = st.lists(st.sampled_from((0, 0, 1, 1, 2, 3, 4, 9)), max_size=4, unique=True)
listed = st.dictionaries(
    st.sampled_from(("foo", "bar", "baz", "physnet-1")),
    # Nova and os_acc differ for an option that is present and empty.
    st.none() | nodes.filter(bool),
    max_size=4,
)


@given(listed, nodes, orders)
@settings(max_examples=200, deadline=None)
def test_every_cell_has_the_networks_that_nova_gives_it(physnets, tunnel, order):
    conf = configuration(physnets, tunnel, order)
    try:
        expected = novas(conf)
    except nova_exception.InvalidNetworkNUMAAffinity:
        with pytest.raises(InvalidConfiguration):
            ours(conf)
    else:
        assert ours(conf) == expected


@pytest.mark.parametrize("order", [BOTH, BOTH[::-1]])
def test_the_worked_example_of_the_specification(order):
    conf = configuration({"physnet0": [0], "physnet1": [0, 1]}, [1], order)
    assert novas(conf) == ours(conf)
    assert [cell.network_info for cell in ours(conf).cells[:3]] == [
        NUMANetworkInfo(frozenset({"physnet0", "physnet1"}), tunneled=False),
        NUMANetworkInfo(frozenset({"physnet1"}), tunneled=True),
        NUMANetworkInfo(),
    ]


def test_an_empty_list_of_nodes_is_an_error_in_nova_alone():
    """The specification: "If this is empty, the physnet has no NUMA affinity"."""
    conf = configuration({"foo": []}, [], BOTH)
    with pytest.raises(nova_exception.InvalidNetworkNUMAAffinity):
        novas(conf)
    assert ours(conf) == HOST


def test_what_is_there_twice_is_an_error_in_os_acc_alone():
    conf = configuration({"foo": [1, 1]}, [], BOTH)
    assert novas(conf).cells[1].network_info.physnets == {"foo"}
    with pytest.raises(InvalidConfiguration, match="1 more than once"):
        ours(conf)


def test_nova_itself_may_be_imported_after_the_options_were_registered():
    """Nova registers ``[neutron] physnets`` again, with its own help text."""
    conf = cfg.ConfigOpts()
    conf(args=[], default_config_files=[])
    network_options.register(conf)
    register_statically(conf)
    neutron.register_dynamic_opts(conf)
    assert conf.neutron.physnets == []
    assert conf.neutron.http_retries == 3
