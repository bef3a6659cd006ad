# SPDX-License-Identifier: Apache-2.0

"""What Placement was told under our name, so that it can be taken back."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, Self


class NameKind(enum.Enum):
    """What a name of Placement's is the name of."""

    RESOURCE_CLASS = "resource class"
    TRAIT = "trait"


@dataclasses.dataclass(frozen=True, slots=True)
class PlacementName:
    """A resource class or a trait."""

    kind: NameKind
    text: str

    @property
    def is_custom(self) -> bool:
        """Whether Placement knows it only once somebody has made it."""
        return self.text.startswith("CUSTOM_")

    def __str__(self) -> str:
        return f"{self.kind.value} {self.text}"


def classes(texts: Iterable[str]) -> frozenset[PlacementName]:
    """The names of resource classes."""
    return frozenset(PlacementName(NameKind.RESOURCE_CLASS, each) for each in texts)


def traits(texts: Iterable[str]) -> frozenset[PlacementName]:
    """The names of traits."""
    return frozenset(PlacementName(NameKind.TRAIT, each) for each in texts)


@dataclasses.dataclass(frozen=True, slots=True)
class PublishedNames:
    """What of Placement's is ours.

    :ivar given: what each provider was given, by its uuid. What else it has
        is somebody else's.
    :ivar made: the names that were not there before.
    :ivar kept: when Placement last refused to delete one of these, because
        others use it, in seconds since 1970.
    """

    given: Mapping[str, frozenset[PlacementName]] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )
    made: frozenset[PlacementName] = frozenset()
    kept: Mapping[PlacementName, int] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )

    @classmethod
    def of_mapping(
        cls,
        given: Mapping[str, frozenset[PlacementName]],
        made: frozenset[PlacementName] = frozenset(),
        kept: Mapping[PlacementName, int] = MappingProxyType({}),
    ) -> Self:
        """Of mappings that nobody changes; what was given nothing is left out."""
        some = {each: names for each, names in given.items() if names}
        return cls(MappingProxyType(some), made, MappingProxyType({**kept}))

    def __bool__(self) -> bool:
        return any(self.given.values()) or bool(self.made) or bool(self.kept)

    def __or__(self, other: Self) -> PublishedNames:
        uuids = {*self.given, *other.given}
        return PublishedNames.of_mapping(
            {each: self.of(each) | other.of(each) for each in uuids},
            self.made | other.made,
            {**self.kept, **other.kept},
        )

    def __sub__(self, other: Self) -> PublishedNames:
        return PublishedNames.of_mapping(
            {each: self.of(each) - other.of(each) for each in self.given},
            self.made - other.made,
            {name: at for name, at in self.kept.items() if name not in other.made},
        )

    def of(self, provider: str) -> frozenset[PlacementName]:
        """What a provider was given."""
        return self.given.get(provider, frozenset())

    def texts(self, provider: str, kind: NameKind) -> frozenset[str]:
        """The traits, or the classes, that a provider was given."""
        return frozenset(name.text for name in self.of(provider) if name.kind is kind)

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """(provider, kind, name) of everything given."""
        for provider, names in self.given.items():
            yield from ((provider, name.kind.value, name.text) for name in names)


NOTHING: Final = PublishedNames()
