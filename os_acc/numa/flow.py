# SPDX-License-Identifier: Apache-2.0

"""A flow of least cost through a small network, in whole numbers.

Successive shortest paths, each found by Bellman's and Ford's algorithm with a
queue, so that what goes back along an edge may have a negative cost. The same
edges, added in the same order, have the same answer.

Ahuja, Magnanti and Orlin, "Network Flows", 1993, section 9.7.
"""

from __future__ import annotations

from collections import deque


class Flow:
    """Edges with a capacity, and what flows along them.

    :param nodes: how many there are; they are numbered from 0.
    """

    def __init__(self, nodes: int) -> None:
        self._out: list[list[int]] = [[] for _ in range(nodes)]
        # An edge and its way back are neighbours: 2n and 2n + 1.
        self._target: list[int] = []
        self._room: list[int] = []
        self._cost: list[int] = []
        self._priced = False

    def add(self, source: int, target: int, capacity: int, cost: int = 0) -> int:
        """Add an edge; its number, by which :meth:`used` is asked.

        :param capacity: how many units it can carry; 0 or more.
        :param cost: of each of them; 0 or more.
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

    def run(self, source: int, sink: int, wanted: int) -> tuple[int, int]:
        """Send as many units as can be sent, and no more than are wanted.

        It may be called again, and then sends more; edges may be added before.

        :returns: how many were sent, and the least that so many cost.
        """
        sent = total = 0
        while sent < wanted and (path := self._cheapest(source, sink)):
            units = min(wanted - sent, *(self._room[edge] for edge in path))
            for edge in path:
                self._room[edge] -= units
                self._room[edge ^ 1] += units
                total += units * self._cost[edge]
            sent += units
        return sent, total

    def used(self, edge: int) -> int:
        """How many units flow along an edge."""
        return self._room[edge ^ 1]

    def reached(self, start: int, *without: int) -> frozenset[int]:
        """The nodes that more could still be sent to from one of them.

        Where a run has sent less than was wanted, the edges that leave those
        reached from its source are full: a minimum cut.

        :param without: nodes that are not passed.
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
        """The edges of the cheapest way there is room on; none if there is none."""
        least, last = {source: 0}, dict[int, int]()
        waiting, queued = deque([source]), {source}
        # Where nothing has a price, the first way is as good as any.
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
