# SPDX-License-Identifier: Apache-2.0

"""Which free accelerators guests could get, by their cells and their policy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from os_acc.cmd.drawing import ranges
from os_acc.cmd.drawing.labels import plain
from os_acc.cmd.drawing.model import POLICIES, Choice, Supply
from os_acc.cmd.drawing.snapshot import HostSnapshot
from os_acc.numa.affinity import GuestCells, allows


def supplies(scene: HostSnapshot) -> tuple[Supply, ...]:
    """For a guest in each one of the cells, or for the one that is asked about."""
    names = sorted({each.resource_class for each in scene.accelerators})
    return tuple(_supply(scene, name) for name in names)


def _supply(scene: HostSnapshot, name: str) -> Supply:
    nodes = [
        each.numa_node
        for each in scene.accelerators
        if each.resource_class == name and each.is_free
    ]
    return Supply(plain(name), len(nodes), tuple(_choices(scene, nodes)))


def _choices(scene: HostSnapshot, nodes: Sequence[int | None]) -> Iterator[Choice]:
    if not nodes:
        return
    if scene.guest is not None:
        cells = "+".join(map(str, scene.guest.cells))
        yield Choice(cells, _free(scene.guest, nodes))
        return
    if not scene.topology.cells:
        yield Choice("any", _free(GuestCells(scene.topology), nodes))
        return
    rows = [
        (_free(GuestCells(scene.topology, (cell.id,)), nodes), cell.id)
        for cell in scene.topology.cells
    ]
    for free, alike in itertools.groupby(rows, lambda row: row[0]):
        yield Choice(ranges.numbers(number for _free, number in alike), free)


def _free(guest: GuestCells, nodes: Sequence[int | None]) -> tuple[int, ...]:
    return tuple(
        sum(allows(policy, guest.affinity(node)) for node in nodes)
        for policy in POLICIES
    )
