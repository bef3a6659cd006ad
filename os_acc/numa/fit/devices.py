# SPDX-License-Identifier: Apache-2.0

"""Whether a guest's requests for devices can all be served at once.

Which devices a request may have, its policy says
(:mod:`os_acc.numa.affinity`); who gets which is a flow through a network, so
that no request takes what another one depends on.
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
    """Free devices that are alike, such as the VFs of one PF.

    :ivar node: None where the kernel knows of none (``numa_node`` -1).
    """

    name: str
    node: int | None
    count: int


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceRequest:
    """So many devices that are wanted.

    :ivar pools: names of those that it can be served from.
    :ivar also_matching: names of those that have what its specification asks
        for, and that it is not served from all the same: PFs and vDPA devices
        that nobody asked for by name, or what Placement allocated to others.
        Only Nova's way of looking for devices depends on them
        (:mod:`os_acc.numa.fit.nova`).
    """

    name: str
    count: int
    pools: frozenset[str]
    policy: NUMAPolicy = NUMAPolicy.LEGACY
    also_matching: frozenset[str] = frozenset()


def unserved(
    topology: NUMATopology,
    cells: Sequence[int],
    pools: Sequence[DevicePool],
    requests: Sequence[DeviceRequest],
) -> tuple[frozenset[str], ...]:
    """Names of requests that want more, together, than there is for them.

    :param cells: ids of the host's cells that the guest has; none: it may be
        anywhere.
    :returns: empty where all can be served at once; else a set for each
        request that was left short, of all that it competes with.
    """
    guest = GuestCells(topology, tuple(cells))
    flow = Flow(2 + len(requests) + len(pools))
    source, sink = 0, 1
    places = {pool.name: 2 + len(requests) + at for at, pool in enumerate(pools)}
    for pool in pools:
        flow.add(places[pool.name], sink, pool.count)
    asked = []
    # One after another, so that there is little to look at; what was served first
    # still gives way.
    for at, request in enumerate(requests):
        asked.append(flow.add(source, 2 + at, request.count))
        for pool in _served_from(guest, pools, request):
            flow.add(2 + at, places[pool.name], request.count)
        flow.run(source, sink, request.count)
    # Past the source there are others that were left short, of other pools.
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
    """The devices that a provider has left: a pool for each NUMA node.

    What is out of order is in none of them. Nothing of this is allocated or held:
    who asks later may find less.

    :param provider: one of :func:`os_acc.providers`.
    :param attached: what :func:`os_acc.attached` returns of everybody.
    :returns: in the order of the provider's devices; each is named by the
        provider's uuid and the node, which is -1 where the kernel knows of none.
    :raises InvalidInput: an entry is none that :func:`os_acc.plug` returned.
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
    # What is not for a guest has an address here, and no pci_id.
    parts: Any = entry.get("attach_handle_info")
    try:
        domain, bus, slot, function = (
            int(parts[name], 16) for name in ("domain", "bus", "device", "function")
        )
    except (LookupError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"{show(parts)} is no attach_handle_info of an accelerator"
        ) from error
    return PciAddress(domain, bus, slot, function)
