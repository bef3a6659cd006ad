# SPDX-License-Identifier: Apache-2.0

"""Seats for a guest's cells, so that networks and devices can be had as well.

What networks and devices need depends on the *set* of cells alone, and more
cells never hurt. So families of sets are computed with, not permutations
(:mod:`os_acc.numa.fit.cell_sets`):

* the sets that the guest's cells can sit on, one on each;
* those of them that have a cell of each network;
* of what is left, the first way to sit is tried: do all devices flow to it? If
  not, some requests want more, together, than that set leads to. Every set
  that leads to too few for them is taken out, and the next way is tried.

No group of requests comes up twice, so this ends; as a rule after one or two.

Where there is no way, some of those families have nothing in common with one
another, and what they are of cannot be had together. That is where the search
for the least of it begins: to look at every network and request would be slow.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from os_acc import exception
from os_acc.numa.affinity import GuestCells, allows
from os_acc.numa.fit import cell_sets
from os_acc.numa.fit.devices import DevicePool, DeviceRequest, unserved
from os_acc.objects.numa import NUMAPolicy, NUMATopology


@dataclasses.dataclass(frozen=True, slots=True)
class CellRequirement:
    """Some of a host's cells, of which the guest needs one.

    :ivar cells: the set of their places (:mod:`os_acc.numa.fit.cell_sets`).
    """

    name: str
    cells: int


@dataclasses.dataclass(frozen=True, slots=True)
class GuestRequirements:
    """What a guest wants of all its cells together."""

    needs: tuple[CellRequirement, ...] = ()
    requests: tuple[DeviceRequest, ...] = ()

    def __contains__(self, part: CellRequirement | DeviceRequest) -> bool:
        return part in (
            self.needs if isinstance(part, CellRequirement) else self.requests
        )

    def without(self, part: CellRequirement | DeviceRequest) -> GuestRequirements:
        """All the rest."""
        return GuestRequirements(
            tuple(each for each in self.needs if each is not part),
            tuple(each for each in self.requests if each is not part),
        )


def least(
    conflict: GuestRequirements,
    tried: Callable[[GuestRequirements], GuestRequirements | None],
) -> GuestRequirements:
    """Of what cannot be had together, so much that all but any one part can.

    Each attempt that fails tells what it failed for, and only that is looked at
    from there on. Needs are left out before requests are.

    :param tried: what cannot be had of something; None: all of it can, or
        nobody knows.
    """
    parts: tuple[CellRequirement | DeviceRequest, ...] = (
        *conflict.needs,
        *conflict.requests,
    )
    for part in parts:
        if part in conflict and (fewer := tried(conflict.without(part))):
            conflict = fewer
    return conflict


#: What requests have in common that can be served from the same devices.
_Kind = tuple[frozenset[str], NUMAPolicy]


class CellAssignment:
    """A host's cells, and which of a guest's can sit where.

    Cells of the host are told by their place in their order here.

    :param order: ids of the host's cells, the first to be taken first.
    :param choices: for each cell of the guest, the set of the places that it
        can have (:mod:`os_acc.numa.fit.cell_sets`).
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
        self._at_hand = cell_sets.at_hand(choices)
        self._pools = tuple(pools)
        self._budget = budget
        #: Of kinds of requests that were left short, how many devices the sets
        #: lead to.
        self._worth: dict[frozenset[_Kind], list[int]] = {}
        self._leading: dict[tuple[int | None, frozenset[NUMAPolicy]], int] = {}

    def crowded(self) -> tuple[int, ...]:
        """Cells of the guest that have too few seats, and none too many of them."""
        if self._at_hand is not None or self._seated[0]:
            return ()
        # One more than there are seats is too many, whichever they are.
        kept = list(range(len(self._choices)))[: len(self._order) + 1]
        for place in tuple(kept):
            rest = [each for each in kept if each != place]
            choices = [self._choices[each] for each in rest]
            if not cell_sets.seats(len(self._order), choices)[0]:
                kept = rest
        return tuple(kept)

    def found(self, wants: GuestRequirements) -> tuple[int, ...] | GuestRequirements:
        """The first way to sit that has all of it: ids of the host's cells.

        :returns: where there is none, those wants that have ruled out the last.
        :raises FitTooHard: neither found nor ruled out within the budget.
        """
        # Requests of a kind are served as one.
        counts = Counter[_Kind]()
        for request in wants.requests:
            counts[_kind(request)] += request.count
        kinds = tuple(counts)
        asked = [
            DeviceRequest(str(at), counts[kind], *kind) for at, kind in enumerate(kinds)
        ]
        # Most guests sit at once, and then no family is made.
        seats, bounds = self._at_hand, dict[CellRequirement | frozenset[_Kind], int]()
        if seats is None or not _meets(seats, wants.needs):
            bounds = self._known(wants.needs, counts)
            seats = self._first(bounds.values())
        tried = 0
        while seats is not None:
            if tried == self._budget:
                raise exception.FitTooHard(
                    f"{tried} ways to seat the guest on {len(self._order)} cells "
                    f"leave some of {len(wants.requests)} requests for devices short"
                )
            tried += 1
            cells = tuple(self._order[seat] for seat in seats)
            short = unserved(self._topology, cells, self._pools, asked)
            if not short:
                return cells
            bounds = bounds or self._known(wants.needs, counts)
            for names in short:
                group = frozenset(kinds[int(name)] for name in names)
                bounds[group] = self._leading_to_enough(group, counts)
            seats = self._first(bounds.values())
        return self._decisive(wants, bounds)

    def conflict(self, wants: GuestRequirements) -> GuestRequirements:
        """Of what has ruled out the last way, what cannot be had together.

        Without any one part of it the rest can, unless the budget ends before
        that is known.
        """

        def missing(fewer: GuestRequirements) -> GuestRequirements | None:
            try:
                found = self.found(fewer)
            except exception.FitTooHard:
                return None
            return found if isinstance(found, GuestRequirements) else None

        return least(wants, missing)

    def _decisive(
        self,
        wants: GuestRequirements,
        bounds: Mapping[CellRequirement | frozenset[_Kind], int],
    ) -> GuestRequirements:
        """Those wants whose bounds leave no way to sit."""
        origins = tuple(bounds)
        kept = cell_sets.too_narrow(self._seated[0], tuple(bounds.values()))
        needs, short = set[CellRequirement](), set[_Kind]()
        for origin in (origins[place] for place in kept):
            if isinstance(origin, CellRequirement):
                needs.add(origin)
            else:
                short |= origin
        return GuestRequirements(
            tuple(each for each in wants.needs if each in needs),
            tuple(each for each in wants.requests if _kind(each) in short),
        )

    @functools.cached_property
    def _seated(self) -> list[int]:
        return cell_sets.seats(len(self._order), self._choices)

    def _known(
        self, needs: Iterable[CellRequirement], counts: Mapping[_Kind, int]
    ) -> dict[CellRequirement | frozenset[_Kind], int]:
        """The families that meet each need, and what was learned of requests."""
        found: dict[CellRequirement | frozenset[_Kind], int] = {
            need: cell_sets.touching(len(self._order), need.cells) for need in needs
        }
        for group in self._worth:
            if group <= counts.keys():
                found[group] = self._leading_to_enough(group, counts)
        return found

    def _first(self, bounds: Iterable[int]) -> list[int] | None:
        allowed = self._seated[0]
        for bound in bounds:
            allowed &= bound
        if not allowed:
            return None
        return cell_sets.first(len(self._order), self._choices, self._seated, allowed)

    def _leading_to_enough(
        self, group: frozenset[_Kind], counts: Mapping[_Kind, int]
    ) -> int:
        """The family of the sets with as many devices as a group wants in all."""
        number = len(self._order)
        if group not in self._worth:
            worths = Counter[int]()
            for pool in self._pools:
                worths[self._leading_to(pool, group)] += pool.count
            self._worth[group] = cell_sets.worth(number, worths)
        wanted = sum(counts[kind] for kind in group)
        return cell_sets.at_least(number, self._worth[group], wanted)

    def _leading_to(self, pool: DevicePool, group: Iterable[_Kind]) -> int:
        """The places of which one lets a pool serve one of the requests."""
        policies = frozenset(policy for pools, policy in group if pool.name in pools)
        key = pool.node, policies
        if key not in self._leading:
            self._leading[key] = sum(
                1 << place
                for place, cell in enumerate(self._order)
                if _any_allows(policies, GuestCells(self._topology, (cell,)), pool)
            )
        return self._leading[key]


def _any_allows(
    policies: Iterable[NUMAPolicy], guest: GuestCells, pool: DevicePool
) -> bool:
    affinity = guest.affinity(pool.node)
    return any(allows(policy, affinity) for policy in policies)


def _kind(request: DeviceRequest) -> _Kind:
    return request.pools, request.policy


def _meets(seats: Iterable[int], needs: Iterable[CellRequirement]) -> bool:
    taken = sum(1 << seat for seat in seats)
    return all(taken & need.cells for need in needs)
