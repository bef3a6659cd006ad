# SPDX-License-Identifier: Apache-2.0

"""Host cells are tried in Nova's order, spread or packed."""

from __future__ import annotations

import pytest

from os_acc.numa.fit import DeviceRequest, Question, ordered
from os_acc.numa.nearest import DevicePool
from os_acc.objects.numa import (
    CPUPolicy,
    InstanceNUMACell,
    InstanceNUMATopology,
    NUMACell,
    NUMATopology,
)


def cell(number: int, free: int = 8, sharing: int = 0, memory: int = 0) -> NUMACell:
    """Return a cell with free dedicated CPUs, and ``sharing`` shared CPUs in use."""
    return NUMACell(
        number,
        pcpuset=frozenset(range(8)),
        pinned_cpus=frozenset(range(8 - free)),
        memory=1024,
        memory_usage=memory,
        cpu_usage=sharing,
    )


HOST = (
    cell(0, free=4, sharing=2, memory=0),
    cell(1, free=8, sharing=3, memory=512),
    cell(2, free=8, sharing=2, memory=256),
    cell(3, free=2, sharing=0, memory=256),
)
POOLS = (DevicePool("a", 1, 2), DevicePool("b", 3, 1), DevicePool("c", 3, 2))
REQUEST = DeviceRequest("r", 1, frozenset({"a"}))


@pytest.mark.parametrize(
    ("policy", "spread", "packed"),
    [
        (CPUPolicy.SHARED, [3, 0, 2, 1], [1, 2, 0, 3]),
        (CPUPolicy.DEDICATED, [2, 1, 0, 3], [3, 0, 1, 2]),
        (CPUPolicy.MIXED, [2, 1, 0, 3], [3, 0, 1, 2]),
    ],
)
def test_cpus_come_before_memory(
    policy: CPUPolicy, spread: list[int], packed: list[int]
) -> None:
    guest = InstanceNUMATopology((InstanceNUMACell(cpu_policy=policy),))
    for pack, expected in ((False, spread), (True, packed)):
        question = Question(NUMATopology(HOST), guest, pack=pack)
        assert [each.id for each in ordered(question)] == expected


@pytest.mark.parametrize(
    ("requests", "spread", "packed"),
    [
        ((REQUEST,), [3, 1, 0, 2], [3, 1, 2, 0]),
        ((), [0, 2, 1, 3], [2, 0, 1, 3]),
    ],
)
def test_cells_with_devices_are_for_those_who_want_some(
    requests: tuple[DeviceRequest, ...], spread: list[int], packed: list[int]
) -> None:
    guest = InstanceNUMATopology((InstanceNUMACell(),))
    for pack, expected in ((False, spread), (True, packed)):
        question = Question(
            NUMATopology(HOST), guest, pools=POOLS, requests=requests, pack=pack
        )
        assert [each.id for each in ordered(question)] == expected


@pytest.mark.parametrize("number", [0, 4, 5])
def test_where_there_is_no_choice_there_is_no_order(number: int) -> None:
    guest = InstanceNUMATopology((InstanceNUMACell(),) * number)
    assert ordered(Question(NUMATopology(HOST), guest, pools=POOLS)) == HOST
