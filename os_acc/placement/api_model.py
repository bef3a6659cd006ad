# SPDX-License-Identifier: Apache-2.0

"""Placement's providers, inventories and microversions as values."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final, Self

from os_acc import exception
from os_acc.objects.published import PlacementName, classes, traits
from os_acc.placement.capacity import Units

_VERSION: Final = re.compile(r"[0-9]{1,6}\.[0-9]{1,6}")
#: An inventory record, as read; another owner's is written back unchanged.
Record = Mapping[str, Any]


class Declined(exception.ServiceRefused):
    """Placement rejects a request.

    :ivar status: the HTTP status.
    """

    def __init__(self, message: str, *, status: int, hint: str = "") -> None:
        super().__init__(message, service=exception.ServiceType.PLACEMENT, hint=hint)
        self.status = status


class ServerFailed(exception.ServiceUnavailable):
    """Placement reports a failure of its own; other requests may succeed."""


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


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Microversion:
    """A microversion of Placement's API."""

    major: int
    minor: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a microversion: ``1.39``.

        :raises ValueError: the text is no microversion.
        """
        if not _VERSION.fullmatch(text):
            raise ValueError(f"{exception.show(text)} is not a microversion")
        major, minor = text.split(".")
        return cls(int(major), int(minor))

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


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


def in_cycle(parents: Mapping[str, str | None]) -> str | None:
    """Return a provider that is its own ancestor, or None.

    :param parents: the parent of each provider.
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
    """Return an inventory record with all units reserved."""
    return {**of, "reserved": of["total"]}
