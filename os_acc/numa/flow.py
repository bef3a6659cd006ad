# SPDX-License-Identifier: Apache-2.0

"""Minimum-cost flow in a small network, in integers.

The algorithm is successive shortest paths; each path is found by Bellman-Ford
with a queue, so that residual edges may have negative costs. The result is
deterministic: it depends only on the edges and their order.

Ahuja, Magnanti and Orlin, "Network Flows", 1993, section 9.7.
"""

from __future__ import annotations

import sys
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
        self._priced = False

    def add(self, source: int, target: int, capacity: int, cost: int = 0) -> int:
        """Add an edge and return its number, the argument of :meth:`used`.

        :param capacity: the units that it can carry; 0 or more.
        :param cost: the cost of each unit; 0 or more.
        """
        self._priced |= cost > 0
        edge = len(self._target)
        for at, to, room, price in (
            (source, target, capacity, cost),
            (target, source, 0, -cost),
        ):
            self._out[at].append(len(self._target))
            self._target.append(to)
            self._room.append(room)
            self._cost.append(price)
        return edge

    def run(
        self, source: int, sink: int, wanted: int, paths: int = sys.maxsize
    ) -> tuple[int, int]:
        """Send as many units as possible, at most ``wanted``.

        A further call sends more; edges may be added in between.

        :param paths: the most augmenting paths to search for.
        :returns: the units sent, and their minimum cost.
        """
        sent = total = 0
        while sent < wanted and paths and (path := self._cheapest(source, sink)):
            paths -= 1
            units = min(wanted - sent, *(self._room[edge] for edge in path))
            for edge in path:
                self._room[edge] -= units
                self._room[edge ^ 1] += units
                total += units * self._cost[edge]
            sent += units
        return sent, total

    def used(self, edge: int) -> int:
        """Return the number of units that flow along an edge."""
        return self._room[edge ^ 1]

    def reached(self, start: int, *without: int) -> frozenset[int]:
        """Return the nodes that further units could reach from ``start``.

        After a run that sent less than requested, the edges that leave the nodes
        reached from its source are full: a minimum cut.

        :param without: nodes that are not entered.
        """
        found, todo = {start}, [start]
        while todo:
            for edge in self._out[todo.pop()]:
                target = self._target[edge]
                if self._room[edge] and target not in found and target not in without:
                    found.add(target)
                    todo.append(target)
        return frozenset(found)

    def _cheapest(self, source: int, sink: int) -> list[int]:
        """Return the edges of the cheapest path with capacity left; none: empty."""
        least, last = {source: 0}, dict[int, int]()
        waiting, queued = deque([source]), {source}
        # Without costs, the first path found is a cheapest one.
        while waiting and (self._priced or sink not in last):
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
