# SPDX-License-Identifier: Apache-2.0

"""Options for the NUMA nodes of the host's networks.

The options are those of the specification of NUMA-aware virtual switches and of
Nova (``nova/conf/neutron.py``). Nova registers ``[neutron] physnets`` on import
and the others when its compute service starts, which may be before or after the
initialization of this library.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final, Self

from oslo_config import cfg, types

from os_acc import exception
from os_acc.exception import InvalidConfiguration
from os_acc.objects.numa import NUMANetworkInfo, NUMATopology

NEUTRON: Final = "neutron"
TUNNEL: Final = "neutron_tunnel"
PHYSNET: Final = "neutron_physnet_"


class _NovasListOpt(cfg.ListOpt):
    """An option equal to Nova's option of the same name, type and default.

    oslo.config accepts a second registration only of an equal option. Without
    this class, a different help text would keep nova-compute from starting, or
    os_acc from initializing.
    """

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, cfg.ListOpt):
            return NotImplemented
        return (self.name, self.type, self.default) == (
            other.name,
            other.type,
            other.default,
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = cfg.ListOpt.__hash__


PHYSNETS: Final = _NovasListOpt(
    "physnets",
    default=[],
    help="The physical networks with known NUMA nodes on this host. Each requires a "
    "section [neutron_physnet_<its name>]. Any other network has no NUMA affinity. "
    "This is Nova's option.",
)


def _numa_nodes(text: str) -> _NovasListOpt:
    return _NovasListOpt("numa_nodes", default=[], item_type=types.Integer(), help=text)


NUMA_NODES: Final = _numa_nodes(
    "The NUMA nodes of the network interfaces that connect this physical network: "
    "several if the interfaces of a bond are on several nodes. An explicit empty "
    "value: no NUMA affinity. This is Nova's option; Nova rejects an empty value.",
)
TUNNEL_NODES: Final = _numa_nodes(
    "The NUMA nodes of the network interfaces that carry all tunnelled networks (GRE, "
    "VXLAN, Geneve). Empty: no NUMA affinity. This is Nova's option.",
)


def register(conf: cfg.ConfigOpts) -> None:
    """Register the options, including one section for each listed physical network.

    The function is idempotent, and Nova may register its options before or after.

    :raises InvalidConfiguration: the physical networks cannot be read, or
        an option of the same name and another type is registered.
    """
    _register(conf, NEUTRON, PHYSNETS)
    _register(conf, TUNNEL, TUNNEL_NODES)
    for physnet in _values(conf, NEUTRON, PHYSNETS.name):
        _register(conf, PHYSNET + physnet, NUMA_NODES)


def _register(conf: cfg.ConfigOpts, group: str, option: cfg.Opt) -> None:
    try:
        conf.register_opt(option, group=group)
    except cfg.DuplicateOptError as error:
        raise InvalidConfiguration(
            f"[{group}] {option.name} is already registered in this "
            "process, with a definition that differs from Nova 34",
            hint="check whether this version of Nova needs a newer os_acc",
        ) from error


def list_opts() -> list[tuple[str | cfg.OptGroup, list[cfg.Opt]]]:
    """Return the options for oslo-config-generator."""
    physnet = cfg.OptGroup(
        f"{PHYSNET}<name>",
        title="One physical network",
        help="A section for each value of [neutron] physnets.",
        dynamic_group_owner="physnets",
    )
    return [(NEUTRON, [PHYSNETS]), (physnet, [NUMA_NODES]), (TUNNEL, [TUNNEL_NODES])]


@dataclasses.dataclass(frozen=True, slots=True)
class NetworkAffinity:
    """The values of the options.

    :ivar physnets: the nodes of each physical network that has NUMA affinity.
    :ivar tunnel: the nodes of all tunnelled networks; empty: any node.
    """

    physnets: tuple[tuple[str, frozenset[int]], ...] = ()
    tunnel: frozenset[int] = frozenset()

    @classmethod
    def load(cls, conf: cfg.ConfigOpts) -> Self:
        """Register and read the options.

        :raises InvalidConfiguration: a value is malformed or duplicate, or
            a listed physical network has no ``numa_nodes``.
        """
        register(conf)
        listed = _values(conf, NEUTRON, PHYSNETS.name)
        if "" in listed:
            raise InvalidConfiguration(
                f"[{NEUTRON}] physnets is {exception.show(listed)}: a name is empty",
                hint="remove the extra comma",
            )
        nodes = tuple((name, _nodes_of(conf, name)) for name in listed)
        tunnel = _nodes(conf, TUNNEL)
        return cls(tuple(each for each in nodes if each[1]), tunnel)

    def on(self, host: NUMATopology) -> NUMATopology:
        """Return the host's topology with the networks of each cell.

        A host without known cells is returned unchanged and nothing is rejected,
        as in Nova.

        :raises InvalidConfiguration: a node does not exist on the host.
        """
        if not host.cells:
            return host
        for name, nodes in self.physnets:
            _on_host(nodes, PHYSNET + name, host)
        _on_host(self.tunnel, TUNNEL, host)
        return NUMATopology(
            tuple(
                dataclasses.replace(
                    cell,
                    network_info=NUMANetworkInfo(
                        frozenset(name for name, at in self.physnets if cell.id in at),
                        cell.id in self.tunnel,
                    ),
                )
                for cell in host.cells
            )
        )


def idle_sections(conf: cfg.ConfigOpts) -> tuple[str, ...]:
    """Return the sections of unlisted physical networks, which have no effect."""
    used = {PHYSNET + name for name in conf[NEUTRON].physnets}
    return tuple(
        section
        for section in conf.list_all_sections()
        if section.startswith(PHYSNET) and section not in used
    )


def _nodes_of(conf: cfg.ConfigOpts, physnet: str) -> frozenset[int]:
    group = PHYSNET + physnet
    nodes = _nodes(conf, group)
    where = conf.get_location("numa_nodes", group)
    is_given = where and where.location is not cfg.Locations.opt_default
    if not nodes and not is_given:
        raise InvalidConfiguration(
            f"[{NEUTRON}] physnets has {exception.show(physnet)}, but "
            f"[{group}] numa_nodes is not set",
            hint="set numa_nodes, or remove the network from physnets",
        )
    return nodes


def _nodes(conf: cfg.ConfigOpts, group: str) -> frozenset[int]:
    values = _values(conf, group, NUMA_NODES.name)
    # oslo.config reads an empty item between two commas as None.
    if None in values:
        raise InvalidConfiguration(
            f"[{group}] numa_nodes is {exception.show(values)}: a number is empty",
            hint="remove the extra comma",
        )
    return frozenset(values)


def _values(conf: cfg.ConfigOpts, group: str, name: str) -> list[Any]:
    try:
        values: list[Any] = conf[group][name]
    # Covers wrong types and a "$name" reference to an unknown option.
    except cfg.Error as error:
        raise InvalidConfiguration(
            f"[{group}] {name} cannot be read: {error}",
            hint="separate the values by commas",
        ) from error
    for value, times in Counter(values).items():
        if times > 1:
            raise InvalidConfiguration(
                f"[{group}] {name} has {exception.show(value)} more than once",
                hint="remove the duplicate, or correct it",
            )
    return values


def _on_host(nodes: Iterable[int], group: str, host: NUMATopology) -> None:
    cells = [cell.id for cell in host.cells]
    for node in sorted(nodes):
        if node not in cells:
            raise InvalidConfiguration(
                f"[{group}] numa_nodes has {exception.show(node)}, but the "
                f"host's NUMA nodes are {', '.join(map(str, cells))}",
                hint="see 'lscpu' or /sys/devices/system/node",
            )
