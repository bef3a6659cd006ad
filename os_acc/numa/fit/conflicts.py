# SPDX-License-Identifier: Apache-2.0

"""What has to be had together, and the least of it that cannot be."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from os_acc.numa.fit.devices import DeviceRequest


@dataclasses.dataclass(frozen=True, slots=True)
class CellRequirement:
    """Some of a host's cells, of which the guest needs one.

    :ivar cells: the set of their places (:mod:`os_acc.numa.fit.cell_sets`).
    """

    name: str
    cells: int


@dataclasses.dataclass(frozen=True, slots=True)
class GuestRequirements:
    """What a guest wants of all its cells together."""

    needs: tuple[CellRequirement, ...] = ()
    requests: tuple[DeviceRequest, ...] = ()

    def __contains__(self, part: CellRequirement | DeviceRequest) -> bool:
        return part in (
            self.needs if isinstance(part, CellRequirement) else self.requests
        )

    def without(self, part: CellRequirement | DeviceRequest) -> GuestRequirements:
        """All the rest."""
        return GuestRequirements(
            tuple(each for each in self.needs if each is not part),
            tuple(each for each in self.requests if each is not part),
        )


def least(
    conflict: GuestRequirements,
    tried: Callable[[GuestRequirements], GuestRequirements | None],
) -> GuestRequirements:
    """Of what cannot be had together, so much that all but any one part can.

    Each attempt that fails tells what it failed for, and only that is looked at
    from there on. Needs are left out before requests are.

    :param tried: what cannot be had of something; None: all of it can, or
        nobody knows.
    """
    parts: tuple[CellRequirement | DeviceRequest, ...] = (
        *conflict.needs,
        *conflict.requests,
    )
    for part in parts:
        if part in conflict and (fewer := tried(conflict.without(part))):
            conflict = fewer
    return conflict
