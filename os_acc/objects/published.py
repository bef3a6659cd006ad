# SPDX-License-Identifier: Apache-2.0

"""What Placement was told under our name, so that it can be taken back."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, Self


class Kind(enum.Enum):
    """What a name of Placement's is the name of."""

    RESOURCE_CLASS = "resource class"
    TRAIT = "trait"


@dataclasses.dataclass(frozen=True, slots=True)
class Name:
    """A resource class or a trait."""

    kind: Kind
    text: str

    @property
    def is_custom(self) -> bool:
        """Whether Placement knows it only once somebody has made it."""
        return self.text.startswith("CUSTOM_")

    def __str__(self) -> str:
        return f"{self.kind.value} {self.text}"


def classes(texts: Iterable[str]) -> frozenset[Name]:
    """The names of resource classes."""
    return frozenset(Name(Kind.RESOURCE_CLASS, each) for each in texts)


def traits(texts: Iterable[str]) -> frozenset[Name]:
    """The names of traits."""
    return frozenset(Name(Kind.TRAIT, each) for each in texts)


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    """What of Placement's is ours.

    :ivar given: what each provider was given, by its uuid. What else it has
        is somebody else's.
    :ivar made: the names that were not there before.
    :ivar kept: when Placement last refused to delete one of these, because
        others use it, in seconds since 1970.
    """

    given: Mapping[str, frozenset[Name]] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )
    made: frozenset[Name] = frozenset()
    kept: Mapping[Name, int] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )

    @classmethod
    def of_mapping(
        cls,
        given: Mapping[str, frozenset[Name]],
        made: frozenset[Name] = frozenset(),
        kept: Mapping[Name, int] = MappingProxyType({}),
    ) -> Self:
        """Of mappings that nobody changes; what was given nothing is left out."""
        some = {each: names for each, names in given.items() if names}
        return cls(MappingProxyType(some), made, MappingProxyType({**kept}))

    def __bool__(self) -> bool:
        return any(self.given.values()) or bool(self.made) or bool(self.kept)

    def __or__(self, other: Self) -> Told:
        uuids = {*self.given, *other.given}
        return Told.of_mapping(
            {each: self.of(each) | other.of(each) for each in uuids},
            self.made | other.made,
            {**self.kept, **other.kept},
        )

    def __sub__(self, other: Self) -> Told:
        return Told.of_mapping(
            {each: self.of(each) - other.of(each) for each in self.given},
            self.made - other.made,
            {name: at for name, at in self.kept.items() if name not in other.made},
        )

    def of(self, provider: str) -> frozenset[Name]:
        """What a provider was given."""
        return self.given.get(provider, frozenset())

    def texts(self, provider: str, kind: Kind) -> frozenset[str]:
        """The traits, or the classes, that a provider was given."""
        return frozenset(name.text for name in self.of(provider) if name.kind is kind)

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """(provider, kind, name) of everything given."""
        for provider, names in self.given.items():
            yield from ((provider, name.kind.value, name.text) for name in names)


NOTHING: Final = Told()
