# SPDX-License-Identifier: Apache-2.0

"""Names published to Placement by os_acc, recorded so that they can be withdrawn."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, Self


class NameKind(enum.Enum):
    """The kind of a name in Placement."""

    RESOURCE_CLASS = "resource class"
    TRAIT = "trait"


@dataclasses.dataclass(frozen=True, slots=True)
class PlacementName:
    """A resource class or a trait."""

    kind: NameKind
    text: str

    @property
    def is_custom(self) -> bool:
        """Whether it is custom and has to be created in Placement."""
        return self.text.startswith("CUSTOM_")

    def __str__(self) -> str:
        return f"{self.kind.value} {self.text}"


def classes(texts: Iterable[str]) -> frozenset[PlacementName]:
    """Return the names of resource classes."""
    return frozenset(PlacementName(NameKind.RESOURCE_CLASS, each) for each in texts)


def traits(texts: Iterable[str]) -> frozenset[PlacementName]:
    """Return the names of traits."""
    return frozenset(PlacementName(NameKind.TRAIT, each) for each in texts)


@dataclasses.dataclass(frozen=True, slots=True)
class PublishedNames:
    """The names in Placement that os_acc owns.

    :ivar given: the names assigned to each provider, by its uuid. All others on
        the provider belong to other services.
    :ivar made: the names that os_acc created.
    :ivar kept: when Placement last refused to delete one of these names because
        it is in use, in seconds since 1970.
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
        """Build a value from mappings, made immutable, without empty entries."""
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
        """Return the names assigned to a provider."""
        return self.given.get(provider, frozenset())

    def texts(self, provider: str, kind: NameKind) -> frozenset[str]:
        """Return the traits, or the classes, assigned to a provider."""
        return frozenset(name.text for name in self.of(provider) if name.kind is kind)

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield (provider, kind, name) of each assigned name."""
        for provider, names in self.given.items():
            yield from ((provider, name.kind.value, name.text) for name in names)


NOTHING: Final = PublishedNames()
