# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""What Placement was told under our name, so that it can be taken back."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, Self


class Kind(enum.Enum):
    """What a name of Placement's is the name of."""

    RESOURCE_CLASS = "resource class"
    TRAIT = "trait"


@dataclasses.dataclass(frozen=True, slots=True)
class Name:
    """A custom resource class or trait, which Placement knows once it is made."""

    kind: Kind
    text: str

    def __str__(self) -> str:
        return f"{self.kind.value} {self.text}"


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    """What of Placement's is ours, beside providers and their inventories.

    :ivar traits: those that each provider was given, by its uuid. Others on
        it are an operator's.
    :ivar made: the names that were not there before.
    """

    traits: Mapping[str, frozenset[str]] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )
    made: frozenset[Name] = frozenset()

    def __bool__(self) -> bool:
        return any(self.traits.values()) or bool(self.made)

    def __or__(self, other: Self) -> Told:
        uuids = {*self.traits, *other.traits}
        return _told(
            {each: self.of(each) | other.of(each) for each in uuids},
            self.made | other.made,
        )

    def __sub__(self, other: Self) -> Told:
        return _told(
            {each: self.of(each) - other.of(each) for each in self.traits},
            self.made - other.made,
        )

    def of(self, provider: str) -> frozenset[str]:
        """The traits that a provider was given."""
        return self.traits.get(provider, frozenset())

    def pairs(self) -> Iterator[tuple[str, str]]:
        """(provider, trait) of each."""
        for provider, traits in sorted(self.traits.items()):
            yield from ((provider, trait) for trait in sorted(traits))


def _told(traits: Mapping[str, frozenset[str]], made: frozenset[Name]) -> Told:
    return Told(
        MappingProxyType({each: found for each, found in traits.items() if found}), made
    )


NOTHING: Final = Told()
