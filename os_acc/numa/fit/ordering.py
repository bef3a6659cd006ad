# SPDX-License-Identifier: Apache-2.0

"""Which of a host's cells are taken first, where there is a choice.

The order is that of Nova's ``numa_fit_instance_to_host``
(``nova/virt/hardware.py``).
"""

from __future__ import annotations

from collections import Counter

from os_acc.numa.fit.question import Question
from os_acc.objects.numa import CPUPolicy, NUMACell


def ordered(question: Question) -> tuple[NUMACell, ...]:
    """The host's cells, the first to be taken first.

    What counts most is the number of free devices: the more the better for a
    guest that asks for some, and the fewer for another, packed or not. Then
    come CPUs, then memory: the most that is free, or the least. Where the
    guest takes all cells there is nothing to choose, and they stay as they are.
    """
    host, guest = question.host.cells, question.guest.cells
    if len(host) <= len(guest) or not guest:
        return host
    shared = guest[0].cpu_policy is CPUPolicy.SHARED
    there = Counter[int | None]()
    for pool in question.pools:
        there[pool.node] += pool.count
    devices = -1 if question.requests else 1
    free = 1 if question.pack else -1

    def rank(cell: NUMACell) -> tuple[int, int, int]:
        cpus = -cell.cpu_usage if shared else len(cell.free_pcpus)
        return devices * there[cell.id], free * cpus, free * cell.available_memory

    return tuple(sorted(host, key=rank))
