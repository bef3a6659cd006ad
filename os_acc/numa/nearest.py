# SPDX-License-Identifier: Apache-2.0

"""Assign the nearest devices to a guest's requests, evenly over its cells.

All requests are served together, so that an undemanding request does not take
the only device of another. The assignment minimises the sum of tiers
(:data:`ORDER`), then the sum of the firmware's distances, then the unevenness of
devices among the guest's cells.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from os_acc.numa.affinity import GuestCells
from os_acc.numa.flow import Flow
from os_acc.objects.numa import Affinity

#: Best first. Nova, too, prefers a device of an unknown node to a device of
#: another cell (``nova/pci/stats.py``).
ORDER: Final = (
    Affinity.LOCAL,
    Affinity.UNKNOWN,
    Affinity.SAME_SOCKET,
    Affinity.REMOTE,
)


@dataclasses.dataclass(frozen=True, slots=True)
class EqualDevices:
    """Devices that are interchangeable for a guest.

    :ivar node: their NUMA node; None: unknown to the kernel.
    """

    node: int | None
    count: int


@dataclasses.dataclass(frozen=True, slots=True)
class GroupDemand:
    """The demand of one group.

    :ivar shelves: indexes of the device sets that may serve it.
    """

    amount: int
    shelves: tuple[int, ...]


def divide(
    demands: Sequence[GroupDemand], shelves: Sequence[EqualDevices], guest: GuestCells
) -> tuple[tuple[int, ...], ...]:
    """Return the number of devices that each demand gets from each device set.

    The result is deterministic. If the demands exceed the devices, as many
    devices as possible are assigned.
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
    """Return costs in which tier and distance outweigh any unevenness."""
    distances = [guest.distance(shelf.node) for shelf in shelves]
    uneven = total * total + 1
    far = uneven * (total * max(distances, default=0) + 1)
    return [
        ORDER.index(guest.affinity(shelf.node)) * far + distance * uneven
        for shelf, distance in zip(shelves, distances, strict=True)
    ]
