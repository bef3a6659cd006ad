# SPDX-License-Identifier: Apache-2.0

"""Minimum-cost flow in a small network, in integers.

The algorithm is successive shortest paths; each path is found by Bellman-Ford
with a queue, so that residual edges may have negative costs. The result is
deterministic: it depends only on the edges and their order.

Ahuja, Magnanti and Orlin, "Network Flows", 1993, section 9.7.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping


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
        self._priced = False

    def add(self, source: int, target: int, capacity: int, cost: int = 0) -> int:
        """Add an edge and return its number, the argument of :meth:`used`.

        :param capacity: the units that it can carry; 0 or more.
        :param cost: the cost of each unit; 0 or more.
        """
        self._priced |= cost > 0
        edge = len(self._target)
        self._out[source].append(edge)
        self._out[target].append(edge + 1)
        self._target += (target, source)
        self._room += (capacity, 0)
        self._cost += (cost, -cost)
        return edge

    def run(self, source: int, sink: int, wanted: int) -> tuple[int, int]:
        """Send as many units as possible, at most ``wanted``.

        A further call sends more; edges may be added in between.

        :returns: the units sent, and their minimum cost.
        """
        room, sent, total = self._room, 0, 0
        into = self._edges_into(sink)
        while sent < wanted and (path := self._path(source, sink, into)):
            units = min(wanted - sent, *map(room.__getitem__, path))
            for edge in path:
                room[edge] -= units
                room[edge ^ 1] += units
            if not room[path[0]]:
                into = self._edges_into(sink)
            if self._priced:
                total += units * sum(map(self._cost.__getitem__, path))
            sent += units
        return sent, total

    def used(self, edge: int) -> int:
        """Return the number of units that flow along an edge."""
        return self._room[edge ^ 1]

    def _edges_into(self, sink: int) -> dict[int, int]:
        """Return an edge with capacity left from each node that has one."""
        room = self._room
        return {
            self._target[back]: back ^ 1
            for back in reversed(self._out[sink])
            if room[back ^ 1]
        }

    def _path(self, source: int, sink: int, into: Mapping[int, int]) -> list[int]:
        """Return the cheapest path with capacity left, from its end; none: empty."""
        last = (
            self._cheapest(source)
            if self._priced
            else self._shortest(source, sink, into)
        )
        path: list[int] = []
        while sink in last and sink != source:
            path.append(last[sink])
            sink = self._target[last[sink] ^ 1]
        return path

    def _cheapest(self, source: int) -> dict[int, int]:
        """Return the last edge of the cheapest path to each node."""
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
        return last

    def _shortest(
        self, source: int, sink: int, into: Mapping[int, int]
    ) -> dict[int, int]:
        """Return the last edge of a shortest path to each node up to the sink.

        :param into: see :meth:`_edges_into`. Most searches end at one of these nodes
            before they look at its edges.
        """
        if source in into:
            return {sink: into[source]}
        room, target = self._room, self._target
        last, nodes = {source: -1}, [source]
        for node in nodes:
            for edge in self._out[node]:
                if room[edge] and (found := target[edge]) not in last:
                    last[found] = edge
                    if found in into:
                        last[sink] = into[found]
                        return last
                    nodes.append(found)
        return last
