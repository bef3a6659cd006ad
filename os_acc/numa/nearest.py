# SPDX-License-Identifier: Apache-2.0

"""Assign the nearest devices to a guest's requests, evenly over its cells.

All requests are served together, so that an undemanding request does not take
the only device of another. The assignment minimises the sum of tiers
(:data:`ORDER`), then the sum of the firmware's distances, then the unevenness of
devices among the guest's cells.

It is a minimum-cost flow in integers: Ahuja, Magnanti and Orlin, "Network Flows",
1993, section 9.7.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from typing import Final

from os_acc.numa.policies import GuestCells
from os_acc.objects.numa import Affinity

#: Best first. Nova, too, prefers a device of an unknown node to a device of
#: another cell (``nova/pci/stats.py``).
ORDER: Final = tuple(Affinity)


@dataclasses.dataclass(frozen=True, slots=True)
class DevicePool:
    """Free devices that are alike, for example the VFs of one PF.

    :ivar node: None if unknown to the kernel (``numa_node`` -1).
    """

    name: str
    node: int | None
    count: int


@dataclasses.dataclass(frozen=True, slots=True)
class GroupDemand:
    """The demand of one group.

    :ivar pools: indexes of the pools that may serve it.
    """

    amount: int
    pools: tuple[int, ...]


def divide(
    demands: Sequence[GroupDemand], pools: Sequence[DevicePool], guest: GuestCells
) -> tuple[tuple[int, ...], ...]:
    """Return the number of devices that each demand gets from each pool.

    The result is deterministic. If the demands exceed the devices, as many
    devices as possible are assigned.
    """
    total = sum(demand.amount for demand in demands)
    cells = guest.cells or (None,)
    source, sink, first_demand = 0, 1, 2
    first_pool = first_demand + len(demands)
    first_taken = first_pool + len(pools)
    first_cell = first_taken + len(pools)
    flow = Flow(first_cell + len(cells))
    for place, demand in enumerate(demands):
        flow.add(source, first_demand + place, demand.amount)
    shares = [
        {
            pool: flow.add(first_demand + place, first_pool + pool, demand.amount)
            for pool in demand.pools
        }
        for place, demand in enumerate(demands)
    ]
    costs = _costs(pools, guest, total)
    for place, (pool, cost) in enumerate(zip(pools, costs, strict=True)):
        flow.add(first_pool + place, first_taken + place, pool.count, cost)
        for cell in guest.nearest(pool.node) or cells:
            flow.add(first_taken + place, first_cell + cells.index(cell), pool.count)
    for place in range(len(cells)):
        for nth in range(total if guest.cells else 1):
            flow.add(first_cell + place, sink, 1 if guest.cells else total, nth)
    flow.run(source, sink, total)
    return tuple(
        tuple(
            flow.used(share[place]) if place in share else 0
            for place in range(len(pools))
        )
        for share in shares
    )


def _costs(pools: Sequence[DevicePool], guest: GuestCells, total: int) -> list[int]:
    """Return costs in which tier and distance outweigh any unevenness."""
    distances = [guest.distance(pool.node) for pool in pools]
    uneven = total * total + 1
    far = uneven * (total * max(distances, default=0) + 1)
    return [
        ORDER.index(guest.affinity(pool.node)) * far + distance * uneven
        for pool, distance in zip(pools, distances, strict=True)
    ]


class Flow:
    """A network of edges with capacities, and the flow along them.

    The algorithm is successive shortest paths, by Bellman-Ford with a queue: residual
    edges may have negative costs. The result depends only on the edges and their order.

    :param nodes: the number of nodes; they are numbered from 0.
    """

    def __init__(self, nodes: int) -> None:
        self._out: list[list[int]] = [[] for _ in range(nodes)]
        # Edge 2n and its residual edge 2n + 1 are neighbours.
        self._target: list[int] = []
        self._room: list[int] = []
        self._cost: list[int] = []

    def add(self, source: int, target: int, capacity: int, cost: int = 0) -> int:
        """Add an edge and return its number, the argument of :meth:`used`.

        :param capacity: the units that it can carry; 0 or more.
        :param cost: the cost of each unit; 0 or more.
        """
        edge = len(self._target)
        self._out[source].append(edge)
        self._out[target].append(edge + 1)
        self._target += (target, source)
        self._room += (capacity, 0)
        self._cost += (cost, -cost)
        return edge

    def run(self, source: int, sink: int, wanted: int) -> int:
        """Send as many units as possible at the least cost, at most ``wanted``.

        :returns: the units sent.
        """
        sent = 0
        while sent < wanted and (path := self._path(source, sink)):
            units = min(wanted - sent, *(self._room[edge] for edge in path))
            for edge in path:
                self._room[edge] -= units
                self._room[edge ^ 1] += units
            sent += units
        return sent

    def used(self, edge: int) -> int:
        """Return the number of units that flow along an edge."""
        return self._room[edge ^ 1]

    def _path(self, source: int, sink: int) -> list[int]:
        """Return the cheapest path with capacity left, from its end; none: empty."""
        least, last = {source: 0}, dict[int, int]()
        waiting, queued = deque([source]), {source}
        while waiting:
            queued.discard(node := waiting.popleft())
            for edge in self._out[node]:
                target, cost = self._target[edge], least[node] + self._cost[edge]
                if self._room[edge] and cost < least.get(target, cost + 1):
                    least[target], last[target] = cost, edge
                    if target not in queued:
                        queued.add(target)
                        waiting.append(target)
        path: list[int] = []
        while sink in last and sink != source:
            path.append(last[sink])
            sink = self._target[last[sink] ^ 1]
        return path
