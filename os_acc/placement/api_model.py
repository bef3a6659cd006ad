# SPDX-License-Identifier: Apache-2.0

"""What Placement says of providers, as values."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final, Self

from os_acc import exception
from os_acc.objects.published import PlacementName, classes, traits
from os_acc.placement.capacity import Units

#: A record of another's, kept as it is.
_VERSION: Final = re.compile(r"[0-9]{1,6}\.[0-9]{1,6}")
Record = Mapping[str, Any]


class Declined(exception.PlacementRefused):
    """Placement does not do what it is asked to.

    :ivar status: of HTTP.
    """

    def __init__(self, message: str, *, status: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status


class ServerFailed(exception.PlacementUnavailable):
    """Placement says that it has failed; others of its answers may be sound."""


@dataclasses.dataclass(frozen=True, slots=True)
class ListedProvider:
    """One provider, as a listing has it.

    :ivar parent: the uuid of the provider above it; None at the top.
    """

    uuid: str
    name: str
    parent: str | None
    generation: int


@dataclasses.dataclass(frozen=True, slots=True)
class ProviderContents:
    """What one provider has.

    :ivar inventories: by resource class.
    :ivar generation: at which it had that.
    """

    generation: int
    inventories: Mapping[str, Record]
    traits: frozenset[str]

    @property
    def names(self) -> frozenset[PlacementName]:
        """Every class and trait of it."""
        return classes(self.inventories) | traits(self.traits)


#: Of a provider that has just been made.
EMPTY: Final = ProviderContents(0, {}, frozenset())


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Microversion:
    """A microversion of Placement's API."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """From ``1.39``.

        :raises ValueError: it is not that.
        """
        if not _VERSION.fullmatch(text):
            raise ValueError(f"{exception.show(text)} is no microversion")
        major, minor = text.split(".")
        return cls(int(major), int(minor))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


def record(units: Units) -> dict[str, Any]:
    """The inventory of so many units, with every field that Placement has."""
    return {
        "total": units.total,
        "reserved": units.reserved,
        "min_unit": 1,
        "max_unit": units.total,
        "step_size": 1,
        "allocation_ratio": 1.0,
    }


def in_cycle(parents: Mapping[str, str | None]) -> str | None:
    """Return a provider that is below itself; None where there is none.

    :param parents: the provider above each one.
    """
    sound: set[str] = set()
    for uuid in parents:
        path: set[str] = set()
        at: str | None = uuid
        while at is not None and at not in sound:
            if at in path:
                return at
            path.add(at)
            at = parents.get(at)
        sound |= path
    return None


def withdrawn(of: Record) -> dict[str, Any]:
    """The same of which nobody can be given anything any more."""
    return {**of, "reserved": of["total"]}
