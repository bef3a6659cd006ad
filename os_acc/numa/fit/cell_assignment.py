# SPDX-License-Identifier: Apache-2.0

"""Assign a guest's cells to host cells that also provide networks and devices.

Networks and devices depend on the *set* of host cells alone, and a larger set
never provides less. The module therefore computes with families of sets, not
with permutations (:mod:`os_acc.numa.fit.cell_sets`):

* start from the sets that can carry the guest's cells, one cell each;
* keep the sets with a cell of each network;
* try the first remaining assignment. If the flow of devices falls short, some
  requests together demand more than its set reaches. Remove every set that
  reaches too few devices for these requests, and try again.

No group of requests occurs twice, so the loop terminates; usually after one or
two rounds.

If no set remains, some of the families have an empty intersection, and their
requirements conflict. The search for a minimal conflict starts from these
families, because trying every network and request would be slow.
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
    """Host cells; the guest needs at least one of them.

    :ivar cells: their positions as a set (:mod:`os_acc.numa.fit.cell_sets`).
    """

    name: str
    cells: int


@dataclasses.dataclass(frozen=True, slots=True)
class GuestRequirements:
    """The requirements of a guest on all its cells together."""

    needs: tuple[CellRequirement, ...] = ()
    requests: tuple[DeviceRequest, ...] = ()

    def __contains__(self, part: CellRequirement | DeviceRequest) -> bool:
        return part in (
            self.needs if isinstance(part, CellRequirement) else self.requests
        )

    def without(self, part: CellRequirement | DeviceRequest) -> GuestRequirements:
        """Return the requirements except this one."""
        return GuestRequirements(
            tuple(each for each in self.needs if each is not part),
            tuple(each for each in self.requests if each is not part),
        )


def least(
    conflict: GuestRequirements,
    tried: Callable[[GuestRequirements], GuestRequirements | None],
) -> GuestRequirements:
    """Return a minimal set of conflicting requirements.

    Each failing attempt returns a smaller conflict, and the search continues
    with that one. Cell requirements are left out before device requests.

    :param tried: returns the conflict in the given requirements; None: there is
        none, or it is unknown.
    """
    parts: tuple[CellRequirement | DeviceRequest, ...] = (
        *conflict.needs,
        *conflict.requests,
    )
    for part in parts:
        if part in conflict and (fewer := tried(conflict.without(part))):
            conflict = fewer
    return conflict


#: Requests of one kind can be served from the same devices.
_Kind = tuple[frozenset[str], NUMAPolicy]


class CellAssignment:
    """The cells of a host, and the host cells allowed for each guest cell.

    A host cell is identified by its position in ``order``.

    :param order: ids of the host's cells in the order of preference.
    :param choices: for each guest cell, the set of allowed positions
        (:mod:`os_acc.numa.fit.cell_sets`).
    :param budget: the number of assignments tried per call.
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
        #: For each group of kinds left short, the number of devices that each set
        #: of cells reaches.
        self._worth: dict[frozenset[_Kind], list[int]] = {}
        self._leading: dict[tuple[int | None, frozenset[NUMAPolicy]], int] = {}

    def crowded(self) -> tuple[int, ...]:
        """Return a minimal set of guest cells with too few positions between them."""
        if self._at_hand is not None or self._seated[0]:
            return ()
        # Any selection of one cell more than there are positions is too large.
        kept = list(range(len(self._choices)))[: len(self._order) + 1]
        for place in tuple(kept):
            rest = [each for each in kept if each != place]
            choices = [self._choices[each] for each in rest]
            if not cell_sets.seats(len(self._order), choices)[0]:
                kept = rest
        return tuple(kept)

    def found(self, wants: GuestRequirements) -> tuple[int, ...] | GuestRequirements:
        """Return the first assignment that meets all requirements, as host cell ids.

        :returns: without a solution, the requirements that excluded the last set.
        :raises FitUndecided: neither found nor excluded within the budget.
        """
        # Requests of one kind are merged.
        counts = Counter[_Kind]()
        for request in wants.requests:
            counts[_kind(request)] += request.count
        kinds = tuple(counts)
        asked = [
            DeviceRequest(str(at), counts[kind], *kind) for at, kind in enumerate(kinds)
        ]
        # Most guests fit at once, without computing a family.
        seats, bounds = self._at_hand, dict[CellRequirement | frozenset[_Kind], int]()
        if seats is None or not _meets(seats, wants.needs):
            bounds = self._known(wants.needs, counts)
            seats = self._first(bounds.values())
        tried = 0
        while seats is not None:
            if tried == self._budget:
                raise exception.FitUndecided(
                    f"no assignment found for {len(wants.requests)} device "
                    f"requests: {tried} placements of the guest on "
                    f"{len(self._order)} cells tried",
                    reason=exception.FitReason.TOO_HARD,
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
        """Return a minimal conflict among requirements that cannot be met.

        The result may not be minimal if the budget ends before that is known.
        """

        def missing(fewer: GuestRequirements) -> GuestRequirements | None:
            try:
                found = self.found(fewer)
            except exception.FitUndecided:
                return None
            return found if isinstance(found, GuestRequirements) else None

        return least(wants, missing)

    def _decisive(
        self,
        wants: GuestRequirements,
        bounds: Mapping[CellRequirement | frozenset[_Kind], int],
    ) -> GuestRequirements:
        """Return the requirements whose bounds exclude every assignment."""
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
        """Return the families that meet each need, and bounds known for requests."""
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
        """Return the family of sets that reach enough devices for a group."""
        number = len(self._order)
        if group not in self._worth:
            worths = Counter[int]()
            for pool in self._pools:
                worths[self._leading_to(pool, group)] += pool.count
            self._worth[group] = cell_sets.worth(number, worths)
        wanted = sum(counts[kind] for kind in group)
        return cell_sets.at_least(number, self._worth[group], wanted)

    def _leading_to(self, pool: DevicePool, group: Iterable[_Kind]) -> int:
        """Return the positions from which a pool may serve one of the requests."""
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
