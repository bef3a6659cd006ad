# SPDX-License-Identifier: Apache-2.0

"""Convert objects of Nova, and networks of Neutron, to values of this library.

The objects are those of Nova 34 (``nova/objects/numa.py``,
``instance_numa.py``, ``network_metadata.py``). They are not modified; any unset
field but an id counts as empty. Nova is not imported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Final

from os_acc.exception import InvalidInput
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


def networks_from_nova(metadata: Any) -> InstanceNUMANetworks:
    """Return the networks in a ``NetworkMetadata``; none if it is None."""
    physnets: Iterable[str] = _field(metadata, "physnets", ())
    return InstanceNUMANetworks(
        frozenset(physnets), bool(_field(metadata, "tunneled", False))
    )


def host_from_nova(topology: Any) -> NUMATopology:
    """Return the host of a ``NUMATopology``; without cells if it is None.

    Nova's object has no distances.

    :raises InvalidInput: a cell has no id.
    """
    cells = (_host_cell(cell) for cell in _field(topology, "cells", ()))
    return NUMATopology(tuple(sorted(cells, key=lambda cell: cell.id)))


def guest_from_nova(topology: Any) -> InstanceNUMATopology:
    """Return the guest of an ``InstanceNUMATopology``; without cells if it is None."""
    return InstanceNUMATopology(
        tuple(_guest_cell(cell) for cell in _field(topology, "cells", ())),
        _field(topology, "emulator_threads_policy", None) == "isolate",
    )


def _host_cell(cell: Any) -> NUMACell:
    cores: Iterable[Iterable[int]] = _field(cell, "siblings", ())
    pages = (_pages(each) for each in _field(cell, "mempages", ()))
    networks = networks_from_nova(_field(cell, "network_metadata", None))
    return NUMACell(
        id=_id(cell),
        cpuset=frozenset(_field(cell, "cpuset", ())),
        pcpuset=frozenset(_field(cell, "pcpuset", ())),
        memory=_field(cell, "memory", 0),
        siblings=tuple(frozenset(core) for core in cores),
        mempages=tuple(sorted(pages, key=lambda each: each.size_kb)),
        socket=_field(cell, "socket", None),
        network_info=NUMANetworkInfo(networks.physnets, networks.tunneled),
        cpu_usage=_field(cell, "cpu_usage", 0),
        memory_usage=_field(cell, "memory_usage", 0),
        pinned_cpus=frozenset(_field(cell, "pinned_cpus", ())),
    )


def _pages(pages: Any) -> MemoryPages:
    return MemoryPages(
        size_kb=pages.size_kb,
        total=pages.total,
        used=_field(pages, "used", 0),
        reserved=_field(pages, "reserved", 0),
    )


def _guest_cell(cell: Any) -> InstanceNUMACell:
    threads = _field(cell, "cpu_thread_policy", None)
    return InstanceNUMACell(
        cpuset=frozenset(_field(cell, "cpuset", ())),
        pcpuset=frozenset(_field(cell, "pcpuset", ())),
        memory=_field(cell, "memory", 0),
        pagesize=_field(cell, "pagesize", None),
        cpu_policy=CPUPolicy(_field(cell, "cpu_policy", CPUPolicy.SHARED.value)),
        cpu_thread_policy=None if threads is None else CPUThreadPolicy(threads),
    )


def _id(cell: Any) -> int:
    number: int | None = _field(cell, "id", None)
    if number is None:
        raise InvalidInput("a NUMA cell from Nova has no id")
    return number


def _field(of: Any, name: str, default: Any) -> Any:
    """Return a field; the default if the object, the field or its value is missing."""
    # oslo.versionedobjects raises if an unset field is read.
    if of is None or name not in of:
        return default
    value = getattr(of, name)
    return default if value is None else value


PHYSICAL: Final = frozenset({"flat", "vlan"})
#: The types of Nova (``L3_NETWORK_TYPES`` in ``nova/network/constants.py``).
TUNNELED: Final = frozenset({"geneve", "gre", "vxlan"})


@dataclasses.dataclass(frozen=True, slots=True)
class Network:
    """A network as shown by Neutron to administrators.

    A flat network or a VLAN uses the interface of its physical network; all tunnels
    share one other interface (specification of NUMA-aware virtual switches).

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
