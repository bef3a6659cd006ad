# SPDX-License-Identifier: Apache-2.0

"""Check whether all device requests of a guest can be served at once.

The policy of a request selects its devices (:mod:`os_acc.numa.affinity`). A
network flow assigns them, so that no request takes a device that another one
depends on.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from os_acc.exception import InvalidInput, show
from os_acc.numa.affinity import GuestCells, allows
from os_acc.numa.flow import Flow
from os_acc.objects.device import Provider
from os_acc.objects.numa import NUMAPolicy, NUMATopology
from os_acc.objects.pci import PciAddress


@dataclasses.dataclass(frozen=True, slots=True)
class DevicePool:
    """Free devices that are alike, for example the VFs of one PF.

    :ivar node: None if unknown to the kernel (``numa_node`` -1).
    """

    name: str
    node: int | None
    count: int


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A request for a number of devices.

    :ivar pools: names of the pools that can serve it.
    """

    name: str
    count: int
    pools: frozenset[str]
    policy: NUMAPolicy = NUMAPolicy.LEGACY


def unserved(
    topology: NUMATopology,
    cells: Sequence[int],
    pools: Sequence[DevicePool],
    requests: Sequence[DeviceRequest],
) -> tuple[frozenset[str], ...]:
    """Return names of requests that together demand more devices than available.

    :param cells: ids of the host cells of the guest; none: any cell.
    :returns: empty if all can be served at once; otherwise, for each request left
        short, the set of all requests that it competes with.
    """
    guest = GuestCells(topology, tuple(cells))
    flow = Flow(2 + len(requests) + len(pools))
    source, sink = 0, 1
    places = {pool.name: 2 + len(requests) + at for at, pool in enumerate(pools)}
    for pool in pools:
        flow.add(places[pool.name], sink, pool.count)
    asked = []
    # Adding requests one by one keeps each search small; earlier ones can still be
    # rerouted.
    for at, request in enumerate(requests):
        asked.append(flow.add(source, 2 + at, request.count))
        for pool in _served_from(guest, pools, request):
            flow.add(2 + at, places[pool.name], request.count)
        flow.run(source, sink, request.count)
    # Beyond the source are requests left short of other pools.
    short = [
        flow.reached(2 + at, source)
        for at, request in enumerate(requests)
        if flow.used(asked[at]) < request.count
    ]
    return tuple(
        frozenset(
            request.name for at, request in enumerate(requests) if 2 + at in reached
        )
        for reached in short
    )


def _served_from(
    guest: GuestCells, pools: Collection[DevicePool], request: DeviceRequest
) -> list[DevicePool]:
    return [
        pool
        for pool in pools
        if pool.name in request.pools
        and allows(request.policy, guest.affinity(pool.node))
    ]


def free_pools(
    provider: Provider, attached: Mapping[str, Iterable[Mapping[str, Any]]]
) -> tuple[DevicePool, ...]:
    """Return the free devices of a provider: one pool for each NUMA node.

    Faulty devices are excluded. The result is a snapshot: nothing is allocated
    or reserved.

    :param provider: one of :func:`os_acc.providers`.
    :param attached: the result of :func:`os_acc.attached` for all instances.
    :returns: pools in the order of the provider's devices; each is named by the
        provider's uuid and the node (-1 if unknown to the kernel).
    :raises InvalidInput: an entry was not returned by :func:`os_acc.plug`.
    """
    taken = {_address(entry) for entries in attached.values() for entry in entries}
    free = Counter(
        handle.numa_node
        for handle in provider.device.handles
        if not handle.fault and taken.isdisjoint(handle.members)
    )
    return tuple(
        DevicePool(f"{provider.uuid}/{-1 if node is None else node}", node, count)
        for node, count in free.items()
    )


def _address(entry: Mapping[str, Any]) -> PciAddress:
    # An accelerator for the host itself has an address here, but no pci_id.
    parts: Any = entry.get("attach_handle_info")
    try:
        domain, bus, slot, function = (
            int(parts[name], 16) for name in ("domain", "bus", "device", "function")
        )
    except (LookupError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"{show(parts)} is not an attach_handle_info of an accelerator"
        ) from error
    return PciAddress(domain, bus, slot, function)
