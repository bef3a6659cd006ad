# SPDX-License-Identifier: Apache-2.0

"""Groups and allocations as the search takes them: kinds, places, bit masks."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from os_acc.objects.request import GroupPolicy, RequestGroup

#: (suffix of the group, resource class) to the provider that has to serve it.
Pins: TypeAlias = Mapping[tuple[str, str], str]


@dataclasses.dataclass(frozen=True, slots=True)
class ProviderAllocation:
    """What an allocation request takes from one provider.

    :ivar resources: (resource class, amount).
    :ivar exact: the groups have to use all of it up.
    :ivar traits: what it surely has.
    :ivar unsure: the traits of which nobody knows whether it has them; None:
        all others.
    """

    provider: str
    resources: tuple[tuple[str, int], ...]
    exact: bool
    traits: frozenset[str] = frozenset()
    unsure: frozenset[str] | None = frozenset()

    def doubts(self, trait: str) -> bool:
        """Whether nobody knows of this trait."""
        if self.unsure is None:
            return trait not in self.traits
        return trait in self.unsure

    def has(self, trait: str, certain: bool) -> bool:
        """Whether it has a trait.

        :param certain: what nobody knows counts as no.
        """
        if self.doubts(trait):
            return not certain
        return trait in self.traits

    def is_free_of(self, trait: str, certain: bool) -> bool:
        """Whether it has not a trait.

        :param certain: what nobody knows counts as no.
        """
        if self.doubts(trait):
            return not certain
        return trait not in self.traits


@dataclasses.dataclass(frozen=True, slots=True)
class AssignmentCase:
    """What is asked for, and what is allocated.

    :ivar groups: no two of the same suffix, each with resources.
    :ivar allocated: no two of the same provider.
    :ivar pins: the provider of each (suffix, resource class) that has to be
        served by that one.
    :ivar certain: doubt about a trait rules a provider out.
    """

    groups: Collection[RequestGroup]
    policy: GroupPolicy | None
    allocated: Collection[ProviderAllocation]
    pins: Pins = dataclasses.field(default_factory=lambda: MappingProxyType({}))
    certain: bool = False


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class Served:
    """One resource class of one group, and who serves it."""

    suffix: str
    resource_class: str
    provider: str


@dataclasses.dataclass(frozen=True, slots=True)
class AssignmentPart:
    """What is served by one provider: a numbered group, or one class of the other."""

    group: RequestGroup
    resources: tuple[tuple[str, int], ...]

    @property
    def numbered(self) -> bool:
        """Whether it is a group of its own."""
        return bool(self.group.suffix)


@dataclasses.dataclass(frozen=True, slots=True)
class PartKind:
    """Parts that nothing tells apart.

    :ivar suffixes: of their groups, sorted.
    :ivar need: (number of the resource class, amount).
    :ivar where: the places that can serve one of them, as a bit mask.
    :ivar doubtful: those of them where that is not sure.
    """

    suffixes: tuple[str, ...]
    numbered: bool
    need: tuple[tuple[int, int], ...]
    where: int
    doubtful: int


@dataclasses.dataclass(frozen=True, slots=True)
class AssignmentProblem:
    """What is to be assigned.

    :ivar classes: sorted; a resource class is its number in here.
    :ivar providers: sorted; a place is the number of its provider in here.
    :ivar left: for each place the amount of each class.
    :ivar exact: the places that have to be used up, as a bit mask.
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
        """The answer, of the (kind, place) of each part."""
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
    """What is to be assigned, without those that have no part in it."""
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
    masks = _Masks(places, case.certain)
    required = frozenset[str]().union(
        *(part.group.required for part in parts if not part.numbered)
    )
    return AssignmentProblem(
        classes=classes,
        providers=tuple(each.provider for each in places),
        kinds=_kinds(parts, masks, classes, case.pins),
        left=tuple(_row(each.resources, classes) for each in places),
        exact=mask(each.exact for each in places),
        helping=tuple(masks.having(trait) for trait in sorted(required)),
        isolate=case.policy is GroupPolicy.ISOLATE,
    )


def parts_of(groups: Iterable[RequestGroup]) -> Iterator[AssignmentPart]:
    """What is served by one provider each, in a fixed order."""
    for group in sorted(groups, key=lambda group: group.suffix):
        if group.suffix:
            yield AssignmentPart(group, group.resources)
        else:
            yield from (AssignmentPart(group, (each,)) for each in group.resources)


class _Masks:
    """Which places have something, each asked of all of them once."""

    def __init__(self, places: Sequence[ProviderAllocation], certain: bool) -> None:
        self._places = places
        self._resources = [dict(each.resources) for each in places]
        self._certain = certain
        self.offering = functools.cache(self._offering)
        self.having = functools.cache(self._having)
        self.free_of = functools.cache(self._free_of)
        self.doubting = functools.cache(self._doubting)

    def serving(self, part: AssignmentPart, pins: Pins) -> int:
        """Those that can serve a part, as far as each alone is asked."""
        found = (1 << len(self._places)) - 1
        for name, amount in part.resources:
            found &= self.offering(name, amount)
            if (pin := pins.get((part.group.suffix, name))) is not None:
                found &= mask(each.provider == pin for each in self._places)
        for trait in part.group.forbidden:
            found &= self.free_of(trait)
        # The unnumbered group has what it requires between its providers.
        for trait in part.group.required if part.numbered else ():
            found &= self.having(trait)
        return found

    def doubtful(self, part: AssignmentPart) -> int:
        """Those of which it is not known whether they have the right traits."""
        found = 0
        for trait in part.group.required | part.group.forbidden:
            found |= self.doubting(trait)
        return found

    def _offering(self, name: str, amount: int) -> int:
        return mask(has.get(name, 0) >= amount for has in self._resources)

    def _having(self, trait: str) -> int:
        return mask(each.has(trait, self._certain) for each in self._places)

    def _free_of(self, trait: str) -> int:
        return mask(each.is_free_of(trait, self._certain) for each in self._places)

    def _doubting(self, trait: str) -> int:
        return mask(each.doubts(trait) for each in self._places)


def _kinds(
    parts: Iterable[AssignmentPart], masks: _Masks, classes: tuple[str, ...], pins: Pins
) -> tuple[PartKind, ...]:
    number = {name: index for index, name in enumerate(classes)}
    alike: dict[PartKind, list[str]] = {}
    for part in parts:
        kind = PartKind(
            suffixes=(),
            numbered=part.numbered,
            need=tuple(sorted((number[name], n) for name, n in part.resources)),
            where=masks.serving(part, pins),
            doubtful=masks.doubtful(part),
        )
        alike.setdefault(kind, []).append(part.group.suffix)
    return tuple(
        dataclasses.replace(kind, suffixes=tuple(suffixes))
        for kind, suffixes in alike.items()
    )


def _row(
    resources: tuple[tuple[str, int], ...], classes: tuple[str, ...]
) -> tuple[int, ...]:
    has = dict(resources)
    return tuple(has.get(name, 0) for name in classes)


def mask(bits: Iterable[bool]) -> int:
    """The bit mask with these bits, the lowest first."""
    text = "".join("1" if bit else "0" for bit in bits)
    return int(text[::-1] or "0", 2)


def bits(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
