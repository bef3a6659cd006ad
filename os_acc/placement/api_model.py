# SPDX-License-Identifier: Apache-2.0

"""Placement's providers and inventories as values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from os_acc import exception
from os_acc.objects.published import PlacementName, classes, traits
from os_acc.placement.capacity import Units

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
