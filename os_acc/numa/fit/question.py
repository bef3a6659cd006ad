# SPDX-License-Identifier: Apache-2.0

"""The input of a fit, and the order in which host cells are tried.

The order is that of Nova's ``numa_fit_instance_to_host``
(``nova/virt/hardware.py``).
"""

from __future__ import annotations

import dataclasses
from collections import Counter

from os_acc.numa.fit.devices import DevicePool, DeviceRequest
from os_acc.numa.fit.networks import NO_NETWORKS
from os_acc.objects.numa import (
    CPUPolicy,
    InstanceNUMANetworks,
    InstanceNUMATopology,
    NUMACell,
    NUMALimits,
    NUMATopology,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A host, a guest, and what the guest needs besides.

    :ivar limits: None: overcommitment is not judged.
    :ivar networks: those of the guest.
    :ivar pools: free devices of the host, no two pools of the same name.
    :ivar requests: devices that the guest wants, no two of the same name.
    :ivar pack: take cells that are in use first, rather than empty ones, as
        ``[compute] packing_host_numa_cells_allocation_strategy`` does.
    """

    host: NUMATopology
    guest: InstanceNUMATopology
    limits: NUMALimits | None = None
    networks: InstanceNUMANetworks = NO_NETWORKS
    pools: tuple[DevicePool, ...] = ()
    requests: tuple[DeviceRequest, ...] = ()
    pack: bool = False


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
