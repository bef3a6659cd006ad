# SPDX-License-Identifier: Apache-2.0

"""Placement's providers as values, and the changes to them.

The text of a change is shown to operators.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from os_acc import exception
from os_acc.objects.records import PlacementName, classes, traits
from os_acc.placement.capacity import Units

#: An inventory record, as read; another owner's is written back unchanged.
Record = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class ListedProvider:
    """A provider in a listing.

    :ivar parent: the UUID of the parent provider; None for a root.
    """

    uuid: str
    name: str
    parent: str | None
    generation: int


@dataclasses.dataclass(frozen=True, slots=True)
class ProviderContents:
    """The inventories and traits of a provider.

    :ivar inventories: by resource class.
    :ivar generation: the provider's generation when they were read.
    """

    generation: int
    inventories: Mapping[str, Record]
    traits: frozenset[str]

    @property
    def names(self) -> frozenset[PlacementName]:
        """The provider's resource classes and traits."""
        return classes(self.inventories) | traits(self.traits)


#: The contents of a new provider.
EMPTY: Final = ProviderContents(0, {}, frozenset())


def record(units: Units) -> dict[str, Any]:
    """Return the inventory record of the units, with all of Placement's fields."""
    return {
        "total": units.total,
        "reserved": units.reserved,
        "min_unit": 1,
        "max_unit": units.total,
        "step_size": 1,
        "allocation_ratio": 1.0,
    }


def withdrawn(of: Record) -> dict[str, Any]:
    """Return an inventory record with all units reserved."""
    return {**of, "reserved": of["total"]}


@dataclasses.dataclass(frozen=True, slots=True)
class MakeName:
    """Create a custom resource class or trait."""

    name: PlacementName

    def __str__(self) -> str:
        return f"create {self.name}"


@dataclasses.dataclass(frozen=True, slots=True)
class DeleteName:
    """Delete a class or trait that os_acc made."""

    name: PlacementName

    def __str__(self) -> str:
        return f"delete {self.name}, unless others use it"


@dataclasses.dataclass(frozen=True, slots=True)
class Create:
    """Create a provider.

    :ivar parent: the UUID of the parent provider.
    :ivar below: the name of the parent provider.
    """

    uuid: str
    name: str
    parent: str
    below: str

    def __str__(self) -> str:
        return f"create {self.name} ({self.uuid}) below {self.below}"


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """Change the parent of a provider."""

    uuid: str
    name: str
    parent: str
    below: str

    def __str__(self) -> str:
        return f"move {self.name} below {self.below}"


@dataclasses.dataclass(frozen=True, slots=True)
class SetTraits:
    """Change the traits of a provider.

    :ivar traits: all traits after the change, others' included.
    """

    uuid: str
    name: str
    traits: frozenset[str]
    before: frozenset[str]

    @property
    def added(self) -> list[str]:
        """The new traits, sorted."""
        return sorted(self.traits - self.before)

    @property
    def removed(self) -> list[str]:
        """The traits that the change removes, sorted."""
        return sorted(self.before - self.traits)

    def __str__(self) -> str:
        changes = [
            *(f"+{each}" for each in self.added),
            *(f"-{each}" for each in self.removed),
        ]
        return f"set traits of {self.name}: {' '.join(changes)}"


@dataclasses.dataclass(frozen=True, slots=True)
class SetInventories:
    """Change the inventories of a provider.

    :ivar inventories: all inventories after the change, others' included.
    """

    uuid: str
    name: str
    inventories: Mapping[str, Record]
    before: Mapping[str, Record]

    def __str__(self) -> str:
        changes = [
            f"{each} {_units(self.inventories[each])}{_was(self.before.get(each))}"
            for each in sorted(self.inventories)
            if self.inventories[each] != self.before.get(each)
        ]
        dropped = self.before.keys() - self.inventories.keys()
        changes += [f"-{each}" for each in sorted(dropped)]
        return f"set inventory of {self.name}: {', '.join(changes)}"


@dataclasses.dataclass(frozen=True, slots=True)
class Remove:
    """Delete a provider of ours that is empty."""

    uuid: str
    name: str

    def __str__(self) -> str:
        return f"delete {self.name} ({self.uuid})"


Step = MakeName | DeleteName | Create | Move | SetTraits | SetInventories | Remove


@dataclasses.dataclass(frozen=True, slots=True)
class RefusedChange:
    """A wanted change that was not made.

    :ivar what: the text of the change.
    """

    what: str
    error: exception.OsAccError

    def __str__(self) -> str:
        return f"{self.what}: {self.error}"


def _units(of: Record) -> str:
    return f"total {of.get('total')} reserved {of.get('reserved')}"


def _was(before: Record | None) -> str:
    return "" if before is None else f" (was {_units(before)})"
