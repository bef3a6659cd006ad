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

    :ivar assigned: the names of each provider, by its uuid. All others on the provider
        belong to other services.
    :ivar created: the names that os_acc created.
    :ivar in_use_at: when Placement last refused to delete one of these names because
        it is in use, in seconds since 1970.
    """

    assigned: Mapping[str, frozenset[PlacementName]] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )
    created: frozenset[PlacementName] = frozenset()
    in_use_at: Mapping[PlacementName, int] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )

    @classmethod
    def of_mapping(
        cls,
        assigned: Mapping[str, frozenset[PlacementName]],
        created: frozenset[PlacementName] = frozenset(),
        in_use_at: Mapping[PlacementName, int] = MappingProxyType({}),
    ) -> Self:
        """Build a value from mappings, made immutable, without empty entries."""
        some = {each: names for each, names in assigned.items() if names}
        return cls(MappingProxyType(some), created, MappingProxyType({**in_use_at}))

    def __bool__(self) -> bool:
        return any(self.assigned.values()) or bool(self.created) or bool(self.in_use_at)

    def __or__(self, other: Self) -> PublishedNames:
        uuids = {*self.assigned, *other.assigned}
        return PublishedNames.of_mapping(
            {each: self.of(each) | other.of(each) for each in uuids},
            self.created | other.created,
            {**self.in_use_at, **other.in_use_at},
        )

    def __sub__(self, other: Self) -> PublishedNames:
        return PublishedNames.of_mapping(
            {each: self.of(each) - other.of(each) for each in self.assigned},
            self.created - other.created,
            {
                name: at
                for name, at in self.in_use_at.items()
                if name not in other.created
            },
        )

    def of(self, provider: str) -> frozenset[PlacementName]:
        """Return the names assigned to a provider."""
        return self.assigned.get(provider, frozenset())

    def texts(self, provider: str, kind: NameKind) -> frozenset[str]:
        """Return the traits, or the classes, assigned to a provider."""
        return frozenset(name.text for name in self.of(provider) if name.kind is kind)

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield (provider, kind, name) of each assigned name."""
        for provider, names in self.assigned.items():
            yield from ((provider, name.kind.value, name.text) for name in names)


NO_NAMES: Final = PublishedNames()
