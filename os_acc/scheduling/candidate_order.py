# SPDX-License-Identifier: Apache-2.0

"""Order the allocation candidates of a host by cells and functions of accelerators.

Nova claims the first candidate of a host, and chooses the guest's cells without regard
to accelerators. A candidate is an element of Placement's ``allocation_requests``
(microversion 1.34 or newer).
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from os_acc.numa import nearest
from os_acc.numa.policies import GuestCells, allows
from os_acc.objects.numa import Affinity, NUMAPolicy, NUMATopology

#: Combinations of cells that are tried for a candidate at most, by kind.
_MOST_COMBINATIONS: Final = 64

Candidate = Mapping[str, Any]
#: Returns the host cells that Nova chooses for a guest with a candidate, if the guest
#: must include the given ones; None: the guest does not fit.
Fit = Callable[[Candidate, frozenset[int]], tuple[int, ...] | None]


class FunctionReadiness(enum.IntEnum):
    """The state of a region for a requested function; best first."""

    PROGRAMMED = 0
    TO_BE_PROGRAMMED = 1
    OCCUPIED = 2


@dataclasses.dataclass(frozen=True, slots=True)
class ProviderState:
    """The state of a provider in Placement.

    :ivar cells: the NUMA cells of its accelerators; empty: unknown.
    :ivar functions: canonical ids of the functions of its region.
    :ivar is_programmable: whether its region can be programmed.
    :ivar free: the free units of each resource class.
    """

    cells: frozenset[int] = frozenset()
    functions: frozenset[str] = frozenset()
    is_programmable: bool = False
    free: Mapping[str, int] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )


_UNKNOWN: Final = ProviderState()


@dataclasses.dataclass(frozen=True, slots=True)
class GroupRequirements:
    """The requirements of a request group on its accelerators.

    :ivar classes: the resource classes of its accelerators.
    :ivar function: the canonical id of the requested function; empty: any.
    """

    classes: frozenset[str]
    policy: NUMAPolicy
    function: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Use:
    """A provider that a candidate has for a request group."""

    provider: str
    units: Mapping[str, int]
    requirements: GroupRequirements

    @property
    def policy(self) -> NUMAPolicy:
        """The NUMA policy of its group."""
        return self.requirements.policy


@dataclasses.dataclass(frozen=True, slots=True)
class ChosenCandidate:
    """A candidate that can serve a guest.

    :ivar cells: host cells that the guest must include; empty: any.
    """

    candidate: Candidate
    cells: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class HostView:
    """The facts about a host that decide on its candidates.

    :ivar topology: its NUMA cells.
    :ivar providers: its known providers, by UUID.
    :ivar claimed: units that other servers of the same request have claimed, by
        provider and resource class.
    """

    topology: NUMATopology
    providers: Mapping[str, ProviderState]
    claimed: Mapping[tuple[str, str], int]

    def is_exhausted(self, use: Use) -> bool:
        """Return whether earlier servers of the request leave too little."""
        free = self.providers.get(use.provider, _UNKNOWN).free
        return any(
            (claimed := self.claimed.get((use.provider, name), 0))
            and claimed + units > free.get(name, 0)
            for name, units in use.units.items()
        )

    def function_readiness(self, use: Use) -> FunctionReadiness:
        """Return the state of a provider's region for the requested function."""
        state = self.providers.get(use.provider)
        if state is None or not use.requirements.function:
            return FunctionReadiness.TO_BE_PROGRAMMED
        if use.requirements.function in state.functions:
            return FunctionReadiness.PROGRAMMED
        if state.is_programmable:
            return FunctionReadiness.TO_BE_PROGRAMMED
        return FunctionReadiness.OCCUPIED

    def cells(self, use: Use) -> frozenset[int]:
        """Return the known cells of a provider."""
        return self.providers.get(use.provider, _UNKNOWN).cells

    def tier(self, use: Use, guest: GuestCells) -> int | None:
        """Return the tier of the best allowed affinity of a provider to a guest.

        A provider whose cells are not known is allowed: the claim decides.

        :returns: the index in :data:`.nearest.ORDER`; None: the policy allows none of
            its cells.
        """
        if not guest.cells:
            return nearest.ORDER.index(Affinity.LOCAL)
        cells = self.cells(use)
        if not cells:
            return nearest.ORDER.index(Affinity.UNKNOWN)
        found = map(guest.affinity, cells)
        allowed = (each for each in found if allows(use.policy, each))
        return min(map(nearest.ORDER.index, allowed), default=None)


def uses_of(
    candidate: Candidate, groups: Mapping[str, GroupRequirements]
) -> tuple[Use, ...]:
    """Return the providers that a candidate has for the accelerators of groups.

    :param groups: the requirements, by the suffix of the group.
    """
    uses = []
    for suffix, providers in sorted(candidate["mappings"].items()):
        if suffix not in groups:
            continue
        for provider in providers:
            resources = candidate["allocations"].get(provider, {}).get("resources", {})
            classes = groups[suffix].classes & resources.keys()
            if units := {name: resources[name] for name in classes}:
                uses.append(Use(provider, units, groups[suffix]))
    return tuple(uses)


def order(
    candidates: Iterable[Candidate],
    groups: Mapping[str, GroupRequirements],
    view: HostView,
    fit: Fit,
) -> tuple[ChosenCandidate, ...]:
    """Return the candidates that can serve a guest, best first.

    The order is by units left by the same request, NUMA affinity, and function. Equal
    candidates keep their order.
    """
    ranked = []
    for candidate in candidates:
        uses = uses_of(candidate, groups)
        placed = _place(candidate, uses, view, fit)
        if placed is None:
            continue
        tier, cells = placed
        is_exhausted = any(map(view.is_exhausted, uses))
        readiness = sum(map(view.function_readiness, uses))
        ranked.append(
            ((is_exhausted, tier, readiness), ChosenCandidate(candidate, cells))
        )
    ranked.sort(key=lambda each: each[0])
    return tuple(choice for _rank, choice in ranked)


def _place(
    candidate: Candidate, uses: Sequence[Use], view: HostView, fit: Fit
) -> tuple[int, frozenset[int]] | None:
    """Return the sum of the tiers of affinity, and the cells to ask Nova for."""
    best: tuple[int, frozenset[int]] | None = None
    for wanted in itertools.chain([frozenset[int]()], _combinations(uses, view)):
        cells = fit(candidate, wanted)
        if cells is None:
            continue
        tier = _tier(uses, view, GuestCells(view.topology, cells))
        if tier is None or (best is not None and tier >= best[0]):
            continue
        best = tier, wanted or _bound(uses, view, cells)
        if not tier:
            break
    return best


def _tier(uses: Sequence[Use], view: HostView, guest: GuestCells) -> int | None:
    tiers = [view.tier(use, guest) for use in uses]
    return None if None in tiers else sum(filter(None, tiers))


def _combinations(uses: Sequence[Use], view: HostView) -> Iterator[frozenset[int]]:
    """Yield cells of the guest that would be near all known providers."""
    known = [use for use in uses if view.cells(use)]
    local = itertools.product(*(sorted(view.cells(use)) for use in known))
    near = itertools.product(*(_allowed_cells(use, view) for use in known))
    for combinations in (local, near):
        some = itertools.islice(combinations, _MOST_COMBINATIONS)
        yield from dict.fromkeys(map(frozenset, filter(None, some)))


def _allowed_cells(use: Use, view: HostView) -> list[int]:
    """Return the cells of a guest to which a policy allows a provider."""
    guests = [GuestCells(view.topology, (host.id,)) for host in view.topology.cells]
    return [
        guest.cells[0]
        for guest in guests
        if any(allows(use.policy, guest.affinity(cell)) for cell in view.cells(use))
    ]


def _bound(
    uses: Sequence[Use], view: HostView, cells: tuple[int, ...]
) -> frozenset[int]:
    """Return the cells without which the policies do not allow the providers.

    Nova's own choice is kept only if it has to stay: the claim on the host may come
    after that of another guest.
    """
    found = set()
    for use in uses:
        if use.policy is NUMAPolicy.PREFERRED:
            continue
        for near in (view.cells(use), _allowed_cells(use, view)):
            if chosen := set(near).intersection(cells):
                found.add(min(chosen))
                break
    return frozenset(found)
