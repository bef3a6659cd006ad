# SPDX-License-Identifier: Apache-2.0

"""Minimum-cost flow in a small network, in integers.

The algorithm is successive shortest paths; each path is found by Bellman-Ford
with a queue, so that residual edges may have negative costs. The result is
deterministic: it depends only on the edges and their order.

Ahuja, Magnanti and Orlin, "Network Flows", 1993, section 9.7.
"""

from __future__ import annotations

from collections import deque


class Flow:
    """A network of edges with capacities, and the flow along them.

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
