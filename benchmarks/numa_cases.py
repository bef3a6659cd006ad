# SPDX-License-Identifier: Apache-2.0

"""Hosts and guests, each defined by a case and a number of cells.

The same case and number always give the same question, so that two processes can
answer it. The cells are alike: no peculiarity of Nova changes its answer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from os_acc.numa.fit import DeviceRequest, Question
from os_acc.numa.nearest import DevicePool
from os_acc.objects.numa import (
    InstanceNUMACell,
    InstanceNUMANetworks,
    InstanceNUMATopology,
    NUMACell,
    NUMALimits,
    NUMANetworkInfo,
    NUMAPolicy,
    NUMATopology,
)


def _question(
    cells: int,
    networks: Iterable[Iterable[int]] = (),
    pools: Iterable[int] = (),
    requests: Iterable[DeviceRequest] = (),
) -> Question:
    """Build the question for a guest with half as many cells as its host.

    :param networks: the cells of each network that the guest needs.
    :param pools: the cell of each device.
    """
    names = {f"n{at}": tuple(where) for at, where in enumerate(networks)}
    host = NUMATopology(
        tuple(
            NUMACell(
                number,
                frozenset(range(number * 4, number * 4 + 4)),
                memory=1024,
                socket=number // 2,
                network_info=NUMANetworkInfo(
                    frozenset(name for name, where in names.items() if number in where)
                ),
            )
            for number in range(cells)
        )
    )
    guest = [InstanceNUMACell(frozenset(range(2)), memory=256)] * (cells // 2)
    return Question(
        host,
        InstanceNUMATopology(tuple(guest)),
        NUMALimits(),
        InstanceNUMANetworks(frozenset(names)),
        tuple(DevicePool(_pool(at), node, 1) for at, node in enumerate(pools)),
        tuple(requests),
    )


def _pool(at: int) -> str:
    return f"vf:x{at}:{at}"


def _request(at: int, pool: int, policy: NUMAPolicy) -> DeviceRequest:
    return DeviceRequest(f"any:x{pool}:{at}", 1, frozenset({_pool(pool)}), policy)


def _at_once(cells: int) -> Question:
    return _question(cells)


def _last_cells(cells: int) -> Question:
    """Put a network on each of the last cells; the guest needs all of them."""
    return _question(cells, [[at] for at in range(cells // 2, cells)])


def _devices_on_last_cells(cells: int) -> Question:
    """Put devices on the last cells; other devices on the first cells hide them."""
    half = cells // 2
    nodes = [*range(half, cells), *[at for at in range(half) for _ in range(2)]]
    return _question(
        cells,
        pools=nodes,
        requests=[_request(at, at, NUMAPolicy.REQUIRED) for at in range(half)],
    )


def _one_network_too_many(cells: int) -> Question:
    return _question(cells, [[at] for at in range(cells // 2 - 1, cells)])


def _two_kinds(cells: int) -> Question:
    """Require networks on half of the cells, and a device on one of the others."""
    half = cells // 2
    return _question(
        cells,
        [[at] for at in range(half, cells)],
        range(cells),
        [_request(0, 0, NUMAPolicy.REQUIRED)],
    )


def _devices_everywhere(cells: int) -> Question:
    """Put a device on each cell; the guest needs all of them."""
    needed = range(cells)
    return _question(
        cells,
        pools=needed,
        requests=[
            _request(at, at, NUMAPolicy.LEGACY if at % 2 else NUMAPolicy.REQUIRED)
            for at in needed
        ],
    )


def _crowd(cells: int) -> Question:
    """Build 24 requests, four for each of six kinds; they need all devices."""
    nodes = [at % cells for at in range(24)]
    names = [f"vf:x{at % 6}:{at}" for at in range(24)]
    pools = [DevicePool(*each, 1) for each in zip(names, nodes, strict=True)]
    requests = [
        DeviceRequest(
            f"any:x{at % 6}:{at}", 1, frozenset(names[at % 6 :: 6]), NUMAPolicy.REQUIRED
        )
        for at in range(24)
    ]
    return dataclasses.replace(
        _question(cells), pools=tuple(pools), requests=tuple(requests)
    )


#: For each case: whether a solution exists, and the question by host cells.
CASES: dict[str, tuple[bool, Callable[[int], Question]]] = {
    "fits: anywhere": (True, _at_once),
    "fits: networks, last cells": (True, _last_cells),
    "fits: devices, last cells": (True, _devices_on_last_cells),
    "no: a network too many": (False, _one_network_too_many),
    "no: networks against a device": (False, _two_kinds),
    "no: devices on all cells": (False, _devices_everywhere),
    "no: 24 requests": (False, _crowd),
}
