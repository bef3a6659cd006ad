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
from tests.unit.numa.nova_claim import MatchingRequest, near_enough, served_in_turn

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


@pytest.mark.parametrize("policy", ORDER)
def test_a_local_pf_that_was_not_asked_for_hides_nothing_but_from_nova(
    policy: NUMAPolicy,
) -> None:
    there = [DevicePool("pf", 0, 1), DevicePool("vf", 2, 1)]
    request = MatchingRequest(
        "r", 1, frozenset({"vf"}), policy, also_matching=frozenset({"pf"})
    )
    assert all_served(HOST, [0], there, [request]) is (policy is PREFERRED)
    assert not served_in_turn(HOST, [0], there, [request])


@pytest.mark.parametrize("node", [0, 1])
def test_a_cell_without_a_socket_takes_all_sockets_away(node: int) -> None:
    host = NUMATopology((*HOST.cells, NUMACell(4)))
    there = pools([node])
    request = DeviceRequest("r", 1, frozenset({"p0"}), SOCKET)
    for topology, allowed in ((HOST, {0, 1}), (host, {0})):
        assert all_served(topology, [0], there, [request]) is (node in allowed)


def test_no_request_takes_what_another_depends_on() -> None:
    there = [DevicePool("near", 0, 1), DevicePool("far", 2, 1)]
    both = frozenset({"near", "far"})
    anywhere = DeviceRequest("anywhere", 1, both, PREFERRED)
    local = DeviceRequest("local", 1, both, REQUIRED)
    for requests in ([anywhere, local], [local, anywhere]):
        assert all_served(HOST, [0], there, requests)


def test_all_requests_are_served_or_none_is() -> None:
    there = [DevicePool("a", 0, 2), DevicePool("b", 0, 1), DevicePool("c", 0, 9)]
    requests = [
        DeviceRequest("one", 1, frozenset({"a"}), REQUIRED),
        DeviceRequest("two", 2, frozenset({"a", "b"}), REQUIRED),
        DeviceRequest("three", 1, frozenset({"b"}), REQUIRED),
        DeviceRequest("alone", 9, frozenset({"c"}), REQUIRED),
        DeviceRequest("far", 1, frozenset({"nowhere"}), REQUIRED),
    ]
    assert not all_served(HOST, [0], there, requests)
    assert not all_served(HOST, [0], there, requests[:3])
    assert all_served(HOST, [0], there, [requests[0], *requests[2:4]])


@pytest.mark.parametrize(
    ("policy", "wanted", "names"),
    [
        (REQUIRED, 1, "ad"),
        (REQUIRED, 9, "ad"),
        (SOCKET, 2, "ad"),
        (SOCKET, 3, "acd"),
        (LEGACY, 2, "ad"),
        (LEGACY, 3, "abd"),
        (LEGACY, 9, "abd"),
        (PREFERRED, 2, "ad"),
        (PREFERRED, 3, "abd"),
        # Near devices come first; otherwise the order stays.
        (PREFERRED, 4, "abdec"),
    ],
)
def test_nova_looks_no_further_than_it_has_to(
    policy: NUMAPolicy, wanted: int, names: str
) -> None:
    nodes = {"e": 2, "a": 0, "b": None, "c": 1, "d": 0}
    there = [DevicePool(name, node, 1) for name, node in nodes.items()]
    request = DeviceRequest("r", wanted, frozenset(nodes), policy)
    found = near_enough(HOST, [0], there, request)
    assert [pool.name for pool in found] == list(names)
    assert near_enough(HOST, [], there, request) == there
