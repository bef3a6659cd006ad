# SPDX-License-Identifier: Apache-2.0

"""Groups and allocations in the form of the search: kinds, places, bit masks."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from os_acc.objects.request import GroupPolicy, RequestGroup

#: (suffix of the group, resource class) to the provider that must serve it.
Pins: TypeAlias = Mapping[tuple[str, str], str]


@dataclasses.dataclass(frozen=True, slots=True)
class ProviderAllocation:
    """The resources of an allocation request on one provider.

    :ivar resources: (resource class, amount).
    :ivar exact: the groups must use all of it.
    :ivar traits: traits that it certainly has.
    :ivar unsure: traits that are unknown; None: all others.
    """

    provider: str
    resources: tuple[tuple[str, int], ...]
    exact: bool
    traits: frozenset[str] = frozenset()
    unsure: frozenset[str] | None = frozenset()

    def doubts(self, trait: str) -> bool:
        """Return whether this trait is unknown."""
        if self.unsure is None:
            return trait not in self.traits
        return trait in self.unsure

    def has(self, trait: str, certain: bool) -> bool:
        """Return whether it has a trait.

        :param certain: an unknown trait counts as no.
        """
        if self.doubts(trait):
            return not certain
        return trait in self.traits

    def is_free_of(self, trait: str, certain: bool) -> bool:
        """Return whether it lacks a trait.

        :param certain: an unknown trait counts as no.
        """
        if self.doubts(trait):
            return not certain
        return trait not in self.traits


@dataclasses.dataclass(frozen=True, slots=True)
class AssignmentCase:
    """A request and its allocations.

    :ivar groups: suffixes are unique; each group has resources.
    :ivar allocated: providers are unique.
    :ivar pins: the mandatory provider of each (suffix, resource class), if any.
    :ivar certain: an unknown trait excludes a provider.
    """

    groups: Collection[RequestGroup]
    policy: GroupPolicy | None
    allocated: Collection[ProviderAllocation]
    pins: Pins = dataclasses.field(default_factory=lambda: MappingProxyType({}))
    certain: bool = False


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class Served:
    """One resource class of one group, and its provider."""

    suffix: str
    resource_class: str
    provider: str


@dataclasses.dataclass(frozen=True, slots=True)
class AssignmentPart:
    """The unit served by one provider: a numbered group, or one unnumbered class."""

    group: RequestGroup
    resources: tuple[tuple[str, int], ...]

    @property
    def numbered(self) -> bool:
        """Whether it is a numbered group."""
        return bool(self.group.suffix)

    def obstacle(self, each: ProviderAllocation, case: AssignmentCase) -> str:
        """Return the reason why a provider cannot serve it, empty if it can."""
        has, group = dict(each.resources), self.group
        for name, amount in self.resources:
            if not has.get(name):
                return f"none of {name} is allocated on provider {each.provider}"
            if has[name] < amount:
                return f"only {has[name]} {name} on provider {each.provider}"
            pin = case.pins.get((group.suffix, name), each.provider)
            if pin != each.provider:
                return f"provider {each.provider} is not {pin}, which must serve it"
        # Required traits of the unnumbered group may be spread over its providers.
        for trait in sorted(group.required) if self.numbered else ():
            if not each.has(trait, case.certain):
                return f"provider {each.provider} lacks the trait {trait}"
        for trait in sorted(group.forbidden):
            if not each.is_free_of(trait, case.certain):
                return f"provider {each.provider} has the forbidden trait {trait}"
        return ""


@dataclasses.dataclass(frozen=True, slots=True)
class PartKind:
    """Parts that are interchangeable.

    :ivar suffixes: of their groups, sorted.
    :ivar need: (number of the resource class, amount).
    :ivar where: the places that can serve one of them, as a bit mask.
    :ivar doubtful: the places among these whose traits are uncertain.
    """

    suffixes: tuple[str, ...]
    numbered: bool
    need: tuple[tuple[int, int], ...]
    where: int
    doubtful: int


@dataclasses.dataclass(frozen=True, slots=True)
class AssignmentProblem:
    """The assignment problem.

    :ivar classes: sorted; a resource class is identified by its index.
    :ivar providers: sorted; a place is the index of its provider.
    :ivar left: for each place the amount of each class.
    :ivar exact: the places that must be used up, as a bit mask.
    :ivar helping: for each trait that the unnumbered group requires, the
        places that have it, as a bit mask.
    """

    classes: tuple[str, ...]
    providers: tuple[str, ...]
    kinds: tuple[PartKind, ...]
    left: tuple[tuple[int, ...], ...]
    exact: int
    helping: tuple[int, ...]
    isolate: bool

    def served(self, found: Iterable[tuple[int, int]]) -> tuple[Served, ...]:
        """Return the result, given the (kind, place) of each part."""
        places: dict[int, list[int]] = {}
        for kind, place in found:
            places.setdefault(kind, []).append(place)
        return tuple(
            sorted(
                Served(suffix, self.classes[number], self.providers[place])
                for kind, of in places.items()
                for suffix, place in zip(
                    self.kinds[kind].suffixes, sorted(of), strict=True
                )
                for number, _amount in self.kinds[kind].need
            )
        )


def problem_of(case: AssignmentCase) -> AssignmentProblem:
    """Build the problem, without irrelevant providers and classes."""
    parts = list(parts_of(case.groups))
    asked = {name for part in parts for name, _amount in part.resources}
    places = sorted(
        (
            each
            for each in case.allocated
            if each.exact or any(name in asked for name, _amount in each.resources)
        ),
        key=lambda each: each.provider,
    )
    classes = tuple(
        sorted(asked.union(*(dict(each.resources) for each in places if each.exact)))
    )
    required = frozenset[str]().union(
        *(part.group.required for part in parts if not part.numbered)
    )
    return AssignmentProblem(
        classes=classes,
        providers=tuple(each.provider for each in places),
        kinds=_kinds(parts, places, classes, case),
        left=tuple(_row(each.resources, classes) for each in places),
        exact=mask(each.exact for each in places),
        helping=tuple(
            mask(each.has(trait, case.certain) for each in places)
            for trait in sorted(required)
        ),
        isolate=case.policy is GroupPolicy.ISOLATE,
    )


def parts_of(groups: Iterable[RequestGroup]) -> Iterator[AssignmentPart]:
    """Yield the parts that one provider each must serve, in a fixed order."""
    for group in sorted(groups, key=lambda group: group.suffix):
        if group.suffix:
            yield AssignmentPart(group, group.resources)
        else:
            yield from (AssignmentPart(group, (each,)) for each in group.resources)


def _kinds(
    parts: Iterable[AssignmentPart],
    places: Sequence[ProviderAllocation],
    classes: tuple[str, ...],
    case: AssignmentCase,
) -> tuple[PartKind, ...]:
    number = {name: index for index, name in enumerate(classes)}
    alike: dict[object, list[AssignmentPart]] = {}
    for part in parts:
        pins = (case.pins.get((part.group.suffix, name)) for name, _n in part.resources)
        rules = part.group.required, part.group.forbidden
        alike.setdefault((part.numbered, part.resources, *rules, *pins), []).append(
            part
        )
    return tuple(
        PartKind(
            suffixes=tuple(each.group.suffix for each in same),
            numbered=same[0].numbered,
            need=tuple(sorted((number[name], n) for name, n in same[0].resources)),
            where=mask(not same[0].obstacle(each, case) for each in places),
            doubtful=mask(
                each.unsure != frozenset()
                and any(
                    map(each.doubts, same[0].group.required | same[0].group.forbidden)
                )
                for each in places
            ),
        )
        for same in alike.values()
    )


def _row(
    resources: tuple[tuple[str, int], ...], classes: tuple[str, ...]
) -> tuple[int, ...]:
    has = dict(resources)
    return tuple(has.get(name, 0) for name in classes)


def mask(bits: Iterable[bool]) -> int:
    """Return the bit mask of these bits, the lowest first."""
    text = "".join("1" if bit else "0" for bit in bits)
    return int(text[::-1] or "0", 2)


def bits(mask: int) -> Iterator[int]:
    """Yield the numbers of the set bits."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
