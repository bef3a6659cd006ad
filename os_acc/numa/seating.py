# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""Seats for a guest's cells, so that networks and devices can be had as well.

What networks and devices need depends on the *set* of cells alone, and more
cells never hurt. So families of sets are computed with, not permutations
(:mod:`os_acc.numa.families`):

* the sets that the guest's cells can sit on, one on each;
* those of them that have a cell of each network;
* of what is left, the first way to sit is tried: do all devices flow to it? If
  not, some requests want more, together, than that set leads to. Every set
  that leads to too few for them is taken out, and the next way is tried.

No group of requests comes up twice, so this ends; as a rule after one or two.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from os_acc import exception
from os_acc.numa import families
from os_acc.numa.affinity import Affinity, Guest, allows
from os_acc.numa.devices import DevicePool, DeviceRequest, unserved
from os_acc.objects.numa import NUMATopology


class Seating:
    """A host's cells, and which of a guest's can sit where.

    Cells of the host are told by their place in their order here.

    :param order: ids of the host's cells, the first to be taken first.
    :param choices: for each cell of the guest, the set of the places that it
        can have (:mod:`os_acc.numa.families`).
    :param budget: how many ways to sit may be tried at a time.
    """

    def __init__(
        self,
        topology: NUMATopology,
        order: Sequence[int],
        choices: Sequence[int],
        pools: Sequence[DevicePool],
        budget: int,
    ) -> None:
        self._topology = topology
        self._order = tuple(order)
        self._choices = tuple(choices)
        self._at_hand = families.at_hand(choices)
        self._pools = tuple(pools)
        self._budget = budget
        #: Of requests that were left short, the sets that lead to enough.
        self._enough: dict[frozenset[str], int] = {}
        self._standing: dict[int | None, list[Affinity]] = {}

    def crowded(self) -> tuple[int, ...]:
        """Cells of the guest that have too few seats, and none too many of them."""
        if self._at_hand is not None or self._seated[0]:
            return ()
        # One more than there are seats is too many, whichever they are.
        kept = list(range(len(self._choices)))[: len(self._order) + 1]
        for place in tuple(kept):
            rest = [each for each in kept if each != place]
            choices = [self._choices[each] for each in rest]
            if not families.seats(len(self._order), choices)[0]:
                kept = rest
        return tuple(kept)

    def found(
        self, needs: Collection[int], requests: Sequence[DeviceRequest]
    ) -> tuple[int, ...] | None:
        """The first way to sit that has all of it: ids of the host's cells.

        :param needs: sets of places of which one is needed.
        :raises FitTooHard: neither found nor ruled out within the budget.
        """
        # Most guests sit at once, and then no family is made.
        seats, allowed = self._at_hand, None
        if seats is None or self._enough or not _meets(seats, needs):
            allowed = self._allowed(needs, requests)
            seats = self._first(allowed)
        tried = 0
        while seats is not None:
            if tried == self._budget:
                raise exception.FitTooHard(
                    f"{tried} ways to seat the guest on {len(self._order)} cells "
                    f"leave some of {len(requests)} requests for devices short"
                )
            tried += 1
            cells = tuple(self._order[seat] for seat in seats)
            short = unserved(self._topology, cells, self._pools, requests)
            if not short:
                return cells
            if allowed is None:
                allowed = self._allowed(needs, requests)
            for group in short:
                allowed &= self._leading_to_enough(group, requests)
            seats = self._first(allowed)
        return None

    def conflict(
        self, needs: Mapping[str, int], requests: Sequence[DeviceRequest]
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of needs and of requests that cannot be met together.

        Without any one of them the others can, unless the budget ends before
        that is known.
        """
        names, asked = self._shown(needs, requests)
        for name in tuple(names):
            fewer = {each: need for each, need in names.items() if each != name}
            if not self._possible(fewer, asked):
                names = fewer
        for request in tuple(asked):
            rest = [each for each in asked if each is not request]
            if not self._possible(names, rest):
                asked = rest
        return tuple(names), tuple(request.name for request in asked)

    def _shown(
        self, needs: Mapping[str, int], requests: Sequence[DeviceRequest]
    ) -> tuple[dict[str, int], list[DeviceRequest]]:
        """Those of both that the families made so far already show to be too much.

        It spares seating the guest anew without each of the others.
        """
        asked = frozenset(request.name for request in requests)
        shown: list[tuple[str | frozenset[str], int]] = [
            (name, families.touching(len(self._order), need))
            for name, need in needs.items()
        ]
        shown += [each for each in self._enough.items() if each[0] <= asked]
        for one in tuple(shown):
            rest = [each for each in shown if each is not one]
            left = self._seated[0]
            for _who, family in rest:
                left &= family
            if not left:
                shown = rest
        of_needs = {who for who, _family in shown if isinstance(who, str)}
        groups = [who for who, _family in shown if isinstance(who, frozenset)]
        short = frozenset[str]().union(*groups)
        return (
            {name: need for name, need in needs.items() if name in of_needs},
            [request for request in requests if request.name in short],
        )

    @functools.cached_property
    def _seated(self) -> list[int]:
        return families.seats(len(self._order), self._choices)

    def _allowed(self, needs: Iterable[int], requests: Iterable[DeviceRequest]) -> int:
        """The family of the sets that the guest can sit on, and that meet needs.

        Without those that are known to lead to too few devices.
        """
        family = self._seated[0]
        for need in needs:
            family &= families.touching(len(self._order), need)
        names = {request.name for request in requests}
        for group, enough in self._enough.items():
            if group <= names:
                family &= enough
        return family

    def _first(self, allowed: int) -> list[int] | None:
        if not allowed:
            return None
        return families.first(len(self._order), self._choices, self._seated, allowed)

    def _possible(
        self, needs: Mapping[str, int], requests: Sequence[DeviceRequest]
    ) -> bool:
        try:
            return self.found(needs.values(), requests) is not None
        except exception.FitTooHard:
            return True

    def _leading_to_enough(
        self, group: frozenset[str], requests: Sequence[DeviceRequest]
    ) -> int:
        """The family of the sets with as many devices as a group wants in all."""
        if group not in self._enough:
            asking = [each for each in requests if each.name in group]
            worths = Counter[int]()
            for pool in self._pools:
                worths[self._leading_to(pool, asking)] += pool.count
            wanted = sum(each.count for each in asking)
            self._enough[group] = families.worth(len(self._order), worths, wanted)
        return self._enough[group]

    def _leading_to(self, pool: DevicePool, asking: Iterable[DeviceRequest]) -> int:
        """The places of which one lets a pool serve one of the requests."""
        if pool.node not in self._standing:
            self._standing[pool.node] = [
                Guest(self._topology, (cell,)).affinity(pool.node)
                for cell in self._order
            ]
        policies = {each.policy for each in asking if pool.name in each.pools}
        near_enough = {
            affinity
            for affinity in Affinity
            if any(allows(policy, affinity) for policy in policies)
        }
        return sum(
            1 << place
            for place, affinity in enumerate(self._standing[pool.node])
            if affinity in near_enough
        )


def _meets(seats: Iterable[int], needs: Iterable[int]) -> bool:
    taken = sum(1 << seat for seat in seats)
    return all(taken & need for need in needs)
