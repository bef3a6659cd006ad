# SPDX-License-Identifier: Apache-2.0

"""Guests for which Nova 34 gives a wrong answer, and the quirk that causes it."""

from __future__ import annotations

import dataclasses

from os_acc.numa.fit import DeviceRequest, Question
from os_acc.numa.nearest import DevicePool
from os_acc.objects.numa import (
    CPUPolicy,
    InstanceNUMACell,
    InstanceNUMANetworks,
    InstanceNUMATopology,
    MemoryPages,
    NUMACell,
    NUMALimits,
    NUMANetworkInfo,
    NUMAPolicy,
    NUMATopology,
    PageSize,
)
from tests.unit.numa.nova_claim import MatchingRequest

VF, OTHER_VF, THIRD_VF, PF = "vf:x:0", "vf:x:1", "vf:x:2", "pf:x:3"


@dataclasses.dataclass(frozen=True, slots=True)
class Quirk:
    """A question, the correct answer, and Nova's answer; None: it does not fit."""

    question: Question
    exact: tuple[int, ...] | None
    nova: tuple[int, ...] | None


def host_cell(
    number: int, cpus: int, *physnets: str, shared: int = 4, usage: int = 0
) -> NUMACell:
    """Return a host cell with this many dedicated CPUs, and some shared."""
    own = frozenset(range(number * 8, number * 8 + cpus))
    return NUMACell(
        number,
        frozenset(range(100 + number * 8, 100 + number * 8 + shared)),
        own,
        memory=1024,
        siblings=tuple(frozenset({cpu}) for cpu in sorted(own)),
        socket=0,
        network_info=NUMANetworkInfo(frozenset(physnets)),
        cpu_usage=usage,
    )


def host(*cells: NUMACell) -> NUMATopology:
    return NUMATopology(cells)


def guest_cell(own: int = 0, shared: int = 0) -> InstanceNUMACell:
    """Return a guest cell with this many dedicated and shared CPUs."""
    policy = CPUPolicy.MIXED if own and shared else CPUPolicy.DEDICATED
    return InstanceNUMACell(
        frozenset(range(8, 8 + shared)),
        frozenset(range(own)),
        256,
        cpu_policy=policy if own else CPUPolicy.SHARED,
    )


def guest(*cells: InstanceNUMACell, emulator: bool = False) -> InstanceNUMATopology:
    return InstanceNUMATopology(cells, emulator)


def devices(
    pools: tuple[DevicePool, ...], *requests: DeviceRequest, cells: int = 2
) -> Question:
    """Return a question about a guest of one cell on a host of ``cells`` cells."""
    return Question(
        host(*(host_cell(number, 2) for number in range(cells))),
        guest(guest_cell(shared=1)),
        pools=pools,
        requests=requests,
    )


def two_pages() -> Question:
    """Return a question; host cell 0 has large pages, and cell 1 has more CPUs."""
    small = MemoryPages(4, 1 << 18)
    large = MemoryPages(2048, 512)
    cells = (
        dataclasses.replace(host_cell(0, 1), mempages=(small, large)),
        dataclasses.replace(host_cell(1, 2), mempages=(small,)),
    )
    wanting = dataclasses.replace(guest_cell(own=1), pagesize=PageSize.ANY)
    more = dataclasses.replace(guest_cell(own=2), pagesize=PageSize.ANY)
    return Question(host(*cells), guest(more, wanting))


ANY_VF = frozenset({VF, OTHER_VF, THIRD_VF})

QUIRKS = {
    "a local PF that nobody asked for hides a VF elsewhere": Quirk(
        devices(
            (DevicePool(PF, 0, 1), DevicePool(VF, 1, 1)),
            MatchingRequest(
                "any:x:0",
                1,
                frozenset({VF}),
                NUMAPolicy.PREFERRED,
                also_matching=frozenset({PF}),
            ),
            cells=1,
        ),
        exact=(0,),
        nova=None,
    ),
    "a request takes what only a later one can use": Quirk(
        devices(
            (DevicePool(VF, 0, 1), DevicePool(OTHER_VF, 1, 1)),
            DeviceRequest("any:x:0", 1, ANY_VF, NUMAPolicy.PREFERRED),
            DeviceRequest("any:x:1", 1, ANY_VF, NUMAPolicy.REQUIRED),
            cells=1,
        ),
        exact=(0,),
        nova=None,
    ),
    "what has no node is taken in its turn, although it is no nearer": Quirk(
        devices(
            (
                DevicePool(VF, None, 1),
                DevicePool(OTHER_VF, 0, 1),
                DevicePool(THIRD_VF, None, 1),
            ),
            DeviceRequest("any:x:0", 2, ANY_VF, NUMAPolicy.LEGACY),
            DeviceRequest("any:x:1", 1, ANY_VF, NUMAPolicy.REQUIRED),
            cells=1,
        ),
        exact=(0,),
        nova=None,
    ),
    "a verdict is kept under an id that another cell of the guest gets": Quirk(
        Question(
            host(
                host_cell(0, 0, shared=1),
                host_cell(1, 0, "a", shared=1),
                host_cell(2, 0, shared=2),
            ),
            guest(guest_cell(shared=1), guest_cell(shared=2)),
            NUMALimits(),
            InstanceNUMANetworks(frozenset({"a"})),
        ),
        exact=(1, 2),
        nova=None,
    ),
    "an id is overwritten by what is remembered, too": Quirk(
        Question(
            host(
                host_cell(0, 0, shared=1),
                host_cell(1, 0, shared=1),
                host_cell(2, 0, shared=2),
                host_cell(3, 0, "a", shared=1),
            ),
            guest(guest_cell(shared=1), guest_cell(shared=2)),
            NUMALimits(),
            InstanceNUMANetworks(frozenset({"a"})),
        ),
        exact=(3, 2),
        nova=None,
    ),
    "a cell of the guest goes where it is too large for": Quirk(
        Question(
            host(*(host_cell(number, 1) for number in range(4))),
            guest(guest_cell(own=1), guest_cell(own=1), guest_cell(own=2)),
        ),
        exact=None,
        nova=(1, 2, 0),
    ),
    "the emulator has no CPU where the verdict is of another cell": Quirk(
        Question(
            host(*(host_cell(number, 1 + (number == 1)) for number in range(4))),
            guest(
                guest_cell(own=1), guest_cell(own=1), guest_cell(own=2), emulator=True
            ),
        ),
        exact=None,
        nova=(0, 2, 1),
    ),
    "an id is overwritten although the limits refuse the cell": Quirk(
        Question(
            host(host_cell(1, 1, usage=4), host_cell(2, 1), host_cell(4, 1, "a")),
            guest(guest_cell(own=1, shared=1), guest_cell(own=2, shared=1)),
            NUMALimits(1.0, 16.0),
            InstanceNUMANetworks(frozenset({"a"})),
        ),
        exact=None,
        nova=(4, 2),
    ),
    "the size of the first cell's pages is looked for in all others": Quirk(
        two_pages(), exact=(1, 0), nova=None
    ),
    "networks travel in the limits": Quirk(
        Question(
            host(host_cell(0, 2), host_cell(1, 2, "a")),
            guest(guest_cell(own=1)),
            None,
            InstanceNUMANetworks(frozenset({"a"})),
        ),
        exact=(1,),
        nova=(0,),
    ),
}
