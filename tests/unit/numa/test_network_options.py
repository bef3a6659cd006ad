# SPDX-License-Identifier: Apache-2.0

"""The NUMA nodes of networks are read from ``nova.conf``."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oslo_config import cfg

from os_acc.exception import InvalidConfiguration
from os_acc.numa.network_options import (
    PHYSNETS,
    NetworkAffinity,
    idle_sections,
    register,
)
from os_acc.objects.numa import NUMACell, NUMANetworkInfo, NUMATopology

Configure = Callable[[str], cfg.ConfigOpts]
HOST = NUMATopology((NUMACell(0, memory=1024), NUMACell(1, memory=2048)))
NOTHING = NUMANetworkInfo()

#: The example from the specification of NUMA-aware virtual switches.
WORKED_EXAMPLE = """
 [neutron]
 physnets = physnet0,physnet1

 [neutron_physnet_physnet0]
 numa_nodes = 0

 [neutron_physnet_physnet1]
 numa_nodes = 0,1

 [neutron_tunnel]
 numa_nodes = 1
"""


@pytest.fixture
def configure(tmp_path: Path) -> Configure:
    """Return a function that parses a configuration file with this text."""

    def parse(text: str) -> cfg.ConfigOpts:
        path = tmp_path / "nova.conf"
        path.write_text("\n".join(line.strip() for line in text.splitlines()))
        conf = cfg.ConfigOpts()
        conf(args=[], default_config_files=[str(path)])
        return conf

    return parse


def loaded(conf: cfg.ConfigOpts, host: NUMATopology = HOST) -> list[NUMANetworkInfo]:
    return [cell.network_info for cell in NetworkAffinity.load(conf).on(host).cells]


def test_the_worked_example_of_the_specification(configure):
    assert loaded(configure(WORKED_EXAMPLE)) == [
        NUMANetworkInfo(frozenset({"physnet0", "physnet1"}), tunneled=False),
        NUMANetworkInfo(frozenset({"physnet1"}), tunneled=True),
    ]


def test_nothing_is_tied_to_a_node_by_default(configure):
    assert loaded(configure("")) == [NOTHING, NOTHING]


def test_given_and_empty_a_network_leaves_anywhere(configure):
    for empty in ("", ","):
        nodes = f"numa_nodes = {empty}"
        text = f"[neutron]\nphysnets = a\n[neutron_physnet_a]\n{nodes}\n"
        assert loaded(configure(text)) == [NOTHING, NOTHING]
        assert loaded(configure(f"[neutron_tunnel]\n{nodes}")) == [NOTHING, NOTHING]


@pytest.mark.parametrize("group", ["", "[neutron_physnet_a]\n", "[neutron_physnet_A]"])
def test_a_listed_network_needs_its_nodes(configure, group):
    with pytest.raises(InvalidConfiguration) as caught:
        NetworkAffinity.load(configure(f"[neutron]\nphysnets = a\n{group}"))
    assert "[neutron] physnets has 'a'" in caught.value.message
    assert "[neutron_physnet_a] numa_nodes" in caught.value.message


def test_a_section_whose_network_is_not_listed_is_not_read(configure):
    conf = configure("[neutron_physnet_a]\nnuma_nodes = 7\n[neutron_other]\nb = 1")
    assert loaded(conf) == [NOTHING, NOTHING]
    assert idle_sections(conf) == ("neutron_physnet_a",)


@pytest.mark.parametrize("value", ["2", "0,2", "-1", "4294967296"])
@pytest.mark.parametrize("group", ["neutron_tunnel", "neutron_physnet_a"])
def test_a_node_has_to_be_the_hosts(configure, group, value):
    text = f"[neutron_physnet_a]\nnuma_nodes = 0\n[neutron]\nphysnets = a\n[{group}]\n"
    affinity = NetworkAffinity.load(configure(f"{text}numa_nodes = {value}"))
    with pytest.raises(InvalidConfiguration) as caught:
        affinity.on(HOST)
    assert f"[{group}] numa_nodes has {value.split(',')[-1]}," in caught.value.message
    assert "the host's NUMA nodes are 0, 1" in caught.value.message


def test_on_a_host_without_cells_nothing_is_refused(configure):
    affinity = NetworkAffinity.load(configure("[neutron_tunnel]\nnuma_nodes = 7"))
    assert affinity.on(NUMATopology()) == NUMATopology()


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("zero", "'zero'"),
        ("0-1", "'0-1'"),
        ("0;1", "'0;1'"),
        ("0,,1", "[0, None, 1]"),
        ("1,0,1", "1 more than once"),
        ("$nothing", "nothing"),
    ],
)
@pytest.mark.parametrize("group", ["neutron_tunnel", "neutron_physnet_a"])
def test_a_list_of_nodes_that_is_none_is_an_error_with_its_option(
    configure, group, value, named
):
    text = f"[neutron_physnet_a]\nnuma_nodes = 0\n[neutron]\nphysnets = a\n[{group}]\n"
    with pytest.raises(InvalidConfiguration) as caught:
        NetworkAffinity.load(configure(f"{text}numa_nodes = {value}"))
    assert caught.value.message.startswith(f"[{group}] numa_nodes")
    assert named in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("value", "named"),
    [("a,,b", "['a', '', 'b']"), ("a,b,a", "'a' more than once"), ("$b", "b")],
)
def test_a_list_of_networks_that_is_none_is_an_error_with_its_option(
    configure, value, named
):
    with pytest.raises(InvalidConfiguration) as caught:
        NetworkAffinity.load(configure(f"[neutron]\nphysnets = {value}"))
    assert caught.value.message.startswith("[neutron] physnets")
    assert named in caught.value.message


def novas() -> tuple[cfg.ListOpt, cfg.ListOpt]:
    """Return options as Nova defines them, one with Nova's help and one without."""
    nodes = cfg.ListOpt("numa_nodes", default=[], item_type=cfg.types.Integer())
    return cfg.ListOpt("physnets", default=[], help="List of physnets."), nodes


def register_as_nova(conf: cfg.ConfigOpts) -> None:
    physnets, nodes = novas()
    conf.register_group(cfg.OptGroup("neutron", title="Neutron Options"))
    conf.register_opt(physnets, group="neutron")
    conf.register_opt(nodes, group="neutron_tunnel")
    for physnet in conf.neutron.physnets:
        conf.register_opt(nodes, group=f"neutron_physnet_{physnet}")


@pytest.mark.parametrize("order", [(register, register_as_nova), (register_as_nova,)])
def test_others_may_register_the_same_before_and_after(configure, order):
    conf = configure(WORKED_EXAMPLE)
    for each in order:
        each(conf)
    assert loaded(conf) == loaded(configure(WORKED_EXAMPLE))
    register_as_nova(conf)
    assert conf.neutron_tunnel.numa_nodes == [1]


@pytest.mark.parametrize(
    ("group", "option"),
    [
        ("neutron", cfg.StrOpt("physnets")),
        ("neutron_tunnel", cfg.ListOpt("numa_nodes", default=[])),
    ],
)
def test_an_option_of_that_name_and_another_type_is_refused(group, option):
    conf = cfg.ConfigOpts()
    conf.register_opt(option, group=group)
    with pytest.raises(InvalidConfiguration, match=f"\\[{group}\\] {option.name}"):
        register(conf)


names = st.text(st.sampled_from("abcXYZ019-_."), min_size=1, max_size=12)
some_nodes = st.lists(st.integers(0, 7), max_size=8, unique=True)


@settings(deadline=None)
@given(st.dictionaries(names, some_nodes, max_size=5), some_nodes)
def test_each_cell_has_the_networks_that_name_it(physnets, tunnel):
    conf = cfg.ConfigOpts()
    conf(args=[], default_config_files=[])
    conf.register_opt(PHYSNETS, group="neutron")
    conf.set_override("physnets", list(physnets), "neutron")
    register(conf)
    conf.set_override("numa_nodes", tunnel, "neutron_tunnel")
    for name, nodes in physnets.items():
        conf.set_override("numa_nodes", nodes, f"neutron_physnet_{name}")
    infos = loaded(conf, NUMATopology(tuple(NUMACell(n) for n in range(8))))
    for number, info in enumerate(infos):
        near = {name for name, nodes in physnets.items() if number in nodes}
        assert info == NUMANetworkInfo(frozenset(near), number in tunnel)
