# SPDX-License-Identifier: Apache-2.0

"""Assign request groups to providers, given allocations without mappings.

The allocations of a scheduler's decision are known, but without mappings the
group of each part is not. This module reconstructs it by Placement's own rules
(``placement.objects.allocation_candidate``, 16.0.0):

* one provider serves an entire numbered group, has all traits that the group
  requires and none that it forbids;
* one provider serves each resource class of the unnumbered group; together these
  providers have its required traits, and none has a forbidden one;
* under ``isolate`` no two numbered groups share a provider.

The search is backtracking, the most constrained decision first. It is exact: it
finds an assignment if one exists, or reports that the budget is exhausted. The
result is deterministic.

Specification: nova-specs, rocky, "Granular Resource Request Syntax".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from os_acc import exception
from os_acc.objects.request_group import GroupPolicy, RequestGroup, title

#: The provider of each (suffix of the group, resource class).
Assignment: TypeAlias = Mapping[tuple[str, str], str]
#: No group has a mandatory provider.
NO_PINS: Final[Assignment] = MappingProxyType({})

#: The maximum number of groups, of parts that are served separately, and of
#: providers.
MAX_GROUPS: Final = 64
MAX_PARTS: Final = 256
MAX_PROVIDERS: Final = 512
#: The maximum number of steps of a search: parts that are placed, also on trial.
BUDGET: Final = 2_000
#: Sums above this are not computed and count as reachable.
_LARGEST_SUM: Final = 1 << 14
_SHOWN: Final = 4
_Resources: TypeAlias = tuple[tuple[str, int], ...]
_Rank: TypeAlias = tuple[int, bool, _Resources, tuple[str, ...], tuple[int, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class ProviderAllocation:
    """The resources of an allocation request on one provider.

    :ivar resources: (resource class, amount).
    :ivar exact: the groups must use all of it.
    :ivar satisfies: traits that count as present for groups that require them.
    :ivar violates: traits that count as present for groups that forbid them.
    """

    provider: str
    resources: _Resources
    exact: bool
    satisfies: frozenset[str] = frozenset()
    violates: frozenset[str] = frozenset()

    def obstacle(self, part: RequestGroup, pins: Assignment) -> str:
        """Return the reason why it cannot serve a part of a request; '': it can."""
        has = dict(self.resources)
        for name, amount in part.resources:
            if not has.get(name):
                return f"none of {name} is allocated on provider {self.provider}"
            if has[name] < amount:
                return f"only {has[name]} {name} on provider {self.provider}"
            pin = pins.get((part.suffix, name), self.provider)
            if pin != self.provider:
                return f"provider {self.provider} is not {pin}, which must serve it"
        # Required traits of the unnumbered group may be spread over its providers.
        if part.suffix and (lacking := part.required - self.satisfies):
            return f"provider {self.provider} lacks the trait {min(lacking)}"
        if forbidden := part.forbidden & self.violates:
            return f"provider {self.provider} has the forbidden trait {min(forbidden)}"
        return ""


def assign(
    groups: Collection[RequestGroup],
    policy: GroupPolicy | None,
    allocated: Collection[ProviderAllocation],
    pins: Assignment = NO_PINS,
    budget: int = BUDGET,
) -> dict[tuple[str, str], str]:
    """Find a provider for each resource class of each group.

    :param groups: suffixes are unique; each group has resources.
    :param allocated: providers are unique.
    :param pins: the mandatory provider of each (suffix, resource class), if any.
    :param budget: in steps.
    :raises InvalidAllocation: TOO_LARGE: the problem exceeds the bounds. TOO_HARD:
        neither found nor excluded within the budget. NO_ASSIGNMENT: none exists.
    """
    parts = list(_parts(groups))
    asked = {name for part in parts for name, _amount in part.resources}
    places = sorted(
        (
            each
            for each in allocated
            if each.exact or any(name in asked for name, _amount in each.resources)
        ),
        key=lambda each: each.provider,
    )
    _check_bounds(len(groups), len(parts), len(places))
    kinds = _kinds(parts, places, pins)
    _check_used_up(groups, [each for each in places if each.exact])
    _check_together(kinds, places, policy)
    search = _ProviderSearch(kinds, places, policy, budget)
    found = search.completed(search.start)
    if found is None:
        raise _no_assignment(search.reason())
    served = dict[tuple[str, str], str]()
    for number, kind in enumerate(kinds):
        chosen = sorted(place for each, place in found if each == number)
        for suffix, place in zip(kind.suffixes, chosen, strict=True):
            for name in kind.need:
                served[suffix, name] = places[place].provider
    return served


def _parts(groups: Iterable[RequestGroup]) -> Iterator[RequestGroup]:
    """Yield the parts that one provider each must serve, in a fixed order."""
    for group in sorted(groups, key=lambda group: group.suffix):
        if group.suffix:
            yield group
        else:
            for each in group.resources:
                yield dataclasses.replace(group, resources=(each,))


def _check_bounds(groups: int, parts: int, places: int) -> None:
    for what, number, bound in (
        ("request groups", groups, MAX_GROUPS),
        ("resource classes of request groups", parts, MAX_PARTS),
        ("providers", places, MAX_PROVIDERS),
    ):
        if number > bound:
            raise exception.InvalidAllocation(
                f"{number} {what} exceed the limit of {bound}",
                reason=exception.AllocationReason.TOO_LARGE,
            )


@dataclasses.dataclass(frozen=True, slots=True)
class _Kind:
    """Parts that are interchangeable.

    :ivar part: the first of them.
    :ivar suffixes: of their groups, sorted.
    :ivar need: the amount of each resource class.
    :ivar where: the places that can serve one of them; a place is the index of a
        provider.
    """

    part: RequestGroup
    suffixes: tuple[str, ...]
    need: Mapping[str, int]
    where: frozenset[int]

    @property
    def largest(self) -> int:
        """The largest amount."""
        return max(self.need.values())


def _kinds(
    parts: Iterable[RequestGroup],
    places: Sequence[ProviderAllocation],
    pins: Assignment,
) -> list[_Kind]:
    """Return the kinds of parts; check that some provider can serve each, if alone."""
    alike: dict[object, list[RequestGroup]] = {}
    for part in parts:
        pinned = tuple(pins.get((part.suffix, name)) for name, _n in part.resources)
        rules = (bool(part.suffix), part.resources, part.required, part.forbidden)
        alike.setdefault((rules, pinned), []).append(part)
    kinds = []
    for part, *more in alike.values():
        obstacles = [each.obstacle(part, pins) for each in places]
        where = frozenset(at for at, reason in enumerate(obstacles) if not reason)
        if not where:
            # Providers without the class at all are the least informative.
            reasons = [each for each in obstacles if not each.startswith("none")]
            reason = _some(reasons or obstacles) or "nothing is allocated"
            raise _no_assignment(f"{_wants(part)}, but {reason}")
        suffixes = tuple(each.suffix for each in (part, *more))
        kinds.append(_Kind(part, suffixes, dict(part.resources), where))
    return kinds


def _check_used_up(
    groups: Collection[RequestGroup], exact: Sequence[ProviderAllocation]
) -> None:
    """Check that the groups request what they must use."""
    for name in sorted({name for each in exact for name, _amount in each.resources}):
        there = {each.provider: dict(each.resources).get(name, 0) for each in exact}
        wanted = sum(group.amount(name) for group in groups)
        if (total := sum(there.values())) > wanted:
            shown = _some(f"{n} on provider {at}" for at, n in there.items() if n)
            raise _no_assignment(
                f"{total} {name} are allocated ({shown}), but the groups request "
                f"{wanted or 'none'}"
            )


def _check_together(
    kinds: Sequence[_Kind],
    places: Sequence[ProviderAllocation],
    policy: GroupPolicy | None,
) -> None:
    """Check that parts do not need more than all places that may serve them have."""
    everywhere = frozenset[int]().union(*(kind.where for kind in kinds))
    for scope in dict.fromkeys((everywhere, *(kind.where for kind in kinds))):
        inside = [kind for kind in kinds if kind.where <= scope]
        there = [dict(places[place].resources) for place in scope]
        numbered = [each for kind in inside for each in kind.suffixes if each]
        if policy is GroupPolicy.ISOLATE and len(numbered) > len(there):
            raise _no_assignment(
                f"{_titles(numbered)} require a provider each, as group_policy is "
                f"'isolate', but {len(there)} can serve them"
            )
        for name in sorted({name for kind in inside for name in kind.need}):
            asking = [kind for kind in inside if name in kind.need]
            wanted = sum(kind.need[name] * len(kind.suffixes) for kind in asking)
            have = sum(each.get(name, 0) for each in there)
            if have < wanted:
                suffixes = [suffix for kind in asking for suffix in kind.suffixes]
                raise _no_assignment(
                    f"{_titles(suffixes)} request {wanted} {name}, but the providers "
                    f"that can serve them have {have}"
                )


@dataclasses.dataclass(frozen=True, slots=True)
class _State:
    """A partial assignment.

    :ivar counts: the number of unplaced parts of each kind.
    :ivar where: the places that may still serve each kind.
    :ivar left: the remaining resources of each place.
    :ivar lacking: required traits that the unnumbered group still lacks.
    :ivar made: the (kind, place) of each placed part.
    """

    counts: tuple[int, ...]
    where: tuple[frozenset[int], ...]
    left: tuple[_Resources, ...]
    lacking: frozenset[str]
    made: tuple[tuple[int, int], ...] = ()

    def open_kinds(self) -> list[int]:
        """Return the kinds with unplaced parts."""
        return [kind for kind, count in enumerate(self.counts) if count]

    def able(self, place: int) -> list[int]:
        """Return the kinds with unplaced parts that a place may serve."""
        return [kind for kind in self.open_kinds() if place in self.where[kind]]


class _ProviderSearch:
    """One search."""

    def __init__(
        self,
        kinds: Sequence[_Kind],
        places: Sequence[ProviderAllocation],
        policy: GroupPolicy | None,
        budget: int,
    ) -> None:
        self._kinds = kinds
        self._places = places
        self._isolate = policy is GroupPolicy.ISOLATE
        self._budget = self._steps = budget
        self._failed = set[object]()
        self._deepest: tuple[_State, str | int] | None = None
        unnumbered = [kind.part for kind in kinds if not kind.part.suffix]
        self.start = _State(
            counts=tuple(len(kind.suffixes) for kind in kinds),
            where=tuple(kind.where for kind in kinds),
            left=tuple(each.resources for each in places),
            lacking=frozenset[str]().union(*(part.required for part in unnumbered)),
        )

    def completed(self, now: _State) -> tuple[tuple[int, int], ...] | None:
        """Return the (kind, place) of each part; None: no assignment exists.

        :raises InvalidAllocation: TOO_HARD.
        """
        key = (now.counts, now.where, now.left, now.lacking)
        if key in self._failed:
            return None
        if not self._steps:
            raise exception.InvalidAllocation(
                f"the search for an assignment of request groups to "
                f"{len(self._places)} providers exceeded {self._budget} steps",
                reason=exception.AllocationReason.TOO_HARD,
            )
        self._steps -= 1
        end = self._dead_end(now)
        if end is None:
            if not any(now.counts):
                return now.made
            for kind, place in self._options(now):
                if found := self.completed(self._placed(now, kind, place)):
                    return found
        elif self._deepest is None or len(now.made) > len(self._deepest[0].made):
            self._deepest = now, end
        self._failed.add(key)
        return None

    def _dead_end(self, now: _State) -> str | int | None:
        """Return the group without a provider, or the place that is not used up."""
        open_kinds = now.open_kinds()
        unnumbered = [
            now.where[k] for k in open_kinds if not self._kinds[k].part.suffix
        ]
        reachable = frozenset[int]().union(*unnumbered)
        for trait in now.lacking:
            if not any(trait in self._places[place].satisfies for place in reachable):
                return ""
        for kind in open_kinds:
            if not now.where[kind]:
                return self._kinds[kind].suffixes[-now.counts[kind]]
        for place in self._unfilled(now):
            able = [(self._kinds[k].need, now.counts[k]) for k in now.able(place)]
            for name, left in now.left[place]:
                amounts = [(need[name], n) for need, n in able if name in need]
                if not adds_up(left, amounts):
                    return place
        return None

    def _unfilled(self, now: _State) -> Iterator[int]:
        """Yield the places that still have to be used up."""
        for place, each in enumerate(self._places):
            if each.exact and now.left[place]:
                yield place

    def _options(self, now: _State) -> list[tuple[int, int]]:
        """Return the alternatives of the most constrained decision.

        One of them is right if any assignment exists: a part of a kind has to be at
        one of its places, and a place has to be used up by one of the able kinds.
        """
        kind = min(
            now.open_kinds(),
            key=lambda each: (len(now.where[each]), -self._kinds[each].largest),
        )
        fewest, options = len(now.where[kind]), list[tuple[int, int]]()
        for place in self._unfilled(now):
            able = now.able(place)
            if len(able) < fewest:
                able.sort(key=lambda each: -self._kinds[each].largest)
                fewest, options = len(able), [(each, place) for each in able]
        if options:
            return options
        # Places of equal rank are interchangeable: only the first one is tried.
        places = dict[_Rank, int]()
        for place in sorted(now.where[kind]):
            places.setdefault(self._rank(now, kind, place), place)
        return [(kind, places[rank]) for rank in sorted(places)]

    def _rank(self, now: _State, kind: int, place: int) -> _Rank:
        """Return what distinguishes a place, in the order of preference."""
        each = self._places[place]
        helps = tuple(sorted(now.lacking & each.satisfies))
        # Numbered groups leave the traits that the unnumbered group lacks.
        helpful = len(helps) if self._kinds[kind].part.suffix else -len(helps)
        able = tuple(now.able(place))
        return helpful, not each.exact, now.left[place], helps, able

    def _placed(self, now: _State, kind: int, place: int) -> _State:
        """Return the state with one more part placed."""
        part, need = self._kinds[kind].part, self._kinds[kind].need
        counts, where, left = list(now.counts), list(now.where), list(now.left)
        counts[kind] -= 1
        rest = {name: n - need.get(name, 0) for name, n in now.left[place]}
        left[place] = tuple((name, n) for name, n in rest.items() if n)
        alone = self._isolate and bool(part.suffix)
        for each in now.able(place):
            other = self._kinds[each]
            fits = all(rest.get(name, 0) >= n for name, n in other.need.items())
            if not fits or (alone and other.part.suffix):
                where[each] -= {place}
        lacking = now.lacking
        if not part.suffix:
            lacking -= self._places[place].satisfies
        made = (*now.made, (kind, place))
        return _State(tuple(counts), tuple(where), tuple(left), lacking, made)

    def reason(self) -> str:
        """Return the reason of the failed step at which most parts were placed."""
        assert self._deepest is not None
        now, end = self._deepest
        isolated = " while group_policy is 'isolate'" * self._isolate
        if isinstance(end, int):
            each = self._places[end]
            what = _some(f"{amount} {name}" for name, amount in each.resources)
            return (
                f"{what} are allocated on provider {each.provider}, but no groups that "
                f"it can serve request exactly that{isolated}"
            )
        part = next(kind.part for kind in self._kinds if end in kind.suffixes)
        placed = {
            suffix
            for kind, count in zip(self._kinds, now.counts, strict=True)
            for suffix in kind.suffixes[: len(kind.suffixes) - count]
        }
        beside = f" beside {_titles(placed - {end})}" if placed - {end} else ""
        return (
            f"{_wants(dataclasses.replace(part, suffix=end))}, but no suitable "
            f"provider is left{beside}{isolated}"
        )


def adds_up(target: int, amounts: Collection[tuple[int, int]]) -> bool:
    """Return whether some of these amounts add up to exactly the target.

    :param amounts: (amount, number of times it is available); none is zero.
    :returns: False only if it is certain.
    """
    if sum(amount * number for amount, number in amounts) < target:
        return False
    if target > _LARGEST_SUM:
        return True
    reached, window = 1, (2 << target) - 1
    for amount, number in amounts:
        for _ in range(min(number, target // amount)):
            reached |= reached << amount & window
    return bool(reached >> target & 1)


def _no_assignment(reason: str) -> exception.InvalidAllocation:
    return exception.InvalidAllocation(
        reason,
        hint="pass the flavor and the allocations that were scheduled",
        reason=exception.AllocationReason.NO_ASSIGNMENT,
    )


def _wants(group: RequestGroup) -> str:
    what = _some(f"{amount} {name}" for name, amount in group.resources)
    rules = [
        f"{word} {_some(sorted(traits))}"
        for word, traits in (("requires", group.required), ("forbids", group.forbidden))
        if traits
    ]
    constraints = f" and {' and '.join(rules)}" if rules else ""
    return f"{title(group.suffix)} requires {what}{constraints}"


def _titles(suffixes: Iterable[str]) -> str:
    return _some(title(each) for each in sorted(set(suffixes)))


def _some(names: Iterable[str]) -> str:
    return exception.some(names, _SHOWN)
