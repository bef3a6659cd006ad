# SPDX-License-Identifier: Apache-2.0

"""Nova's table of the devices that serve a guest holds for each policy.

The guest is on cell 0 unless a row says otherwise; cells 0 and 1 are on one
socket, 2 and 3 on the other.
"""

from __future__ import annotations

import pytest

from os_acc.numa.fit.question import DevicePool, DeviceRequest
from os_acc.numa.fit.search import all_served
from os_acc.objects.numa import NUMACell, NUMAPolicy, NUMATopology
from tests.unit.numa.nova_claim import served_in_turn

REQUIRED, SOCKET = NUMAPolicy.REQUIRED, NUMAPolicy.SOCKET
LEGACY, PREFERRED = NUMAPolicy.LEGACY, NUMAPolicy.PREFERRED
ORDER = (REQUIRED, LEGACY, PREFERRED, SOCKET)

HOST = NUMATopology(tuple(NUMACell(number, socket=number // 2) for number in range(4)))

#: Nodes of the devices, the number requested, the guest's cells; and
#: whether required, legacy, preferred and socket are served.
TABLE = {
    "node 0": ([0], 1, [0], "yyyy"),
    "node 1": ([1], 1, [0], "nnyy"),
    "node 2": ([2], 1, [0], "nnyn"),
    "no node": ([None], 1, [0], "nyyn"),
    "no node, and two of node 2": ([None, 2, 2], 2, [0], "nnyn"),
    "node 0 and no node": ([0, None], 2, [0], "nyyn"),
    "node 2, and a guest on it too": ([2], 1, [0, 2], "yyyy"),
    "anywhere, and a guest without cells": ([2], 1, [], "yyyy"),
}


def pools(nodes: list[int | None]) -> list[DevicePool]:
    return [DevicePool(f"p{at}", node, 1) for at, node in enumerate(nodes)]


@pytest.mark.parametrize("policy", ORDER)
@pytest.mark.parametrize(
    ("nodes", "wanted", "cells", "served"), TABLE.values(), ids=TABLE
)
def test_a_policy_allows_what_its_row_says(
    nodes: list[int | None],
    wanted: int,
    cells: list[int],
    served: str,
    policy: NUMAPolicy,
) -> None:
    there = pools(nodes)
    names = frozenset(pool.name for pool in there)
    request = DeviceRequest("r", wanted, names, policy)
    expected = served[ORDER.index(policy)] == "y"
    assert all_served(HOST, cells, there, [request]) is expected
    assert served_in_turn(HOST, cells, there, [request]) is expected


@pytest.mark.parametrize("node", [0, 1])
def test_a_cell_without_a_socket_takes_all_sockets_away(node: int) -> None:
    host = NUMATopology((*HOST.cells, NUMACell(4)))
    there = pools([node])
    request = DeviceRequest("r", 1, frozenset({"p0"}), SOCKET)
    for topology, allowed in ((HOST, {0, 1}), (host, {0})):
        assert all_served(topology, [0], there, [request]) is (node in allowed)
