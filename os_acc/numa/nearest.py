# SPDX-License-Identifier: Apache-2.0

"""Devices for a guest's requests: as near as there are, spread over its cells.

All requests are served together, so that one which would take anything does
not take what another needs. Of all ways to serve them one with the smallest
sum is taken: of tiers (:data:`ORDER`) first, then of the firmware's distances,
then the one that shares the devices out most evenly among the guest's cells.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from os_acc.numa.affinity import GuestCells
from os_acc.numa.flow import Flow
from os_acc.objects.numa import Affinity

#: The best first. Nova, too, takes a device of an unknown node before one of
#: another cell (``nova/pci/stats.py``).
ORDER: Final = (
    Affinity.LOCAL,
    Affinity.UNKNOWN,
    Affinity.SAME_SOCKET,
    Affinity.REMOTE,
)


@dataclasses.dataclass(frozen=True, slots=True)
class EqualDevices:
    """Devices that are all the same to a guest.

    :ivar node: their NUMA node; None: the kernel does not know it.
    """

    node: int | None
    count: int


@dataclasses.dataclass(frozen=True, slots=True)
class GroupDemand:
    """What one group wants.

    :ivar shelves: those that may serve it, by their places in the sequence.
    """

    amount: int
    shelves: tuple[int, ...]


def divide(
    demands: Sequence[GroupDemand], shelves: Sequence[EqualDevices], guest: GuestCells
) -> tuple[tuple[int, ...], ...]:
    """How many devices of each shelf each demand gets.

    The same input gives the same answer. Where not all can be served, as many
    devices as possible are handed out.
    """
    total = sum(demand.amount for demand in demands)
    cells = guest.cells or (None,)
    source, sink, first_demand = 0, 1, 2
    first_shelf = first_demand + len(demands)
    first_taken = first_shelf + len(shelves)
    first_cell = first_taken + len(shelves)
    flow = Flow(first_cell + len(cells))
    for place, demand in enumerate(demands):
        flow.add(source, first_demand + place, demand.amount)
    shares = [
        {
            shelf: flow.add(first_demand + place, first_shelf + shelf, demand.amount)
            for shelf in demand.shelves
        }
        for place, demand in enumerate(demands)
    ]
    costs = _costs(shelves, guest, total)
    for place, (shelf, cost) in enumerate(zip(shelves, costs, strict=True)):
        flow.add(first_shelf + place, first_taken + place, shelf.count, cost)
        for cell in guest.nearest(shelf.node) or cells:
            flow.add(first_taken + place, first_cell + cells.index(cell), shelf.count)
    for place in range(len(cells)):
        for nth in range(total if guest.cells else 1):
            flow.add(first_cell + place, sink, 1 if guest.cells else total, nth)
    flow.run(source, sink, total)
    return tuple(
        tuple(
            flow.used(share[place]) if place in share else 0
            for place in range(len(shelves))
        )
        for share in shares
    )


def _costs(shelves: Sequence[EqualDevices], guest: GuestCells, total: int) -> list[int]:
    """One number for tier and distance, above all that evenness can cost."""
    distances = [guest.distance(shelf.node) for shelf in shelves]
    uneven = total * total + 1
    far = uneven * (total * max(distances, default=0) + 1)
    return [
        ORDER.index(guest.affinity(shelf.node)) * far + distance * uneven
        for shelf, distance in zip(shelves, distances, strict=True)
    ]
