# SPDX-License-Identifier: Apache-2.0

"""The input of a fit, and the order in which host cells are tried.

The order is that of Nova's ``numa_fit_instance_to_host``
(``nova/virt/hardware.py``).
"""

from __future__ import annotations

import dataclasses
from collections import Counter

from os_acc.numa.fit.networks import NO_NETWORKS
from os_acc.objects.numa import (
    CPUPolicy,
    InstanceNUMANetworks,
    InstanceNUMATopology,
    NUMACell,
    NUMALimits,
    NUMAPolicy,
    NUMATopology,
)


@dataclasses.dataclass(frozen=True, slots=True)
class DevicePool:
    """Free devices that are alike, for example the VFs of one PF.

    :ivar node: None if unknown to the kernel (``numa_node`` -1).
    """

    name: str
    node: int | None
    count: int


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceRequest:
    """A request for a number of devices.

    :ivar pools: names of the pools that can serve it.
    """

    name: str
    count: int
    pools: frozenset[str]
    policy: NUMAPolicy = NUMAPolicy.LEGACY


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A host, a guest, and the guest's networks and devices.

    :ivar limits: None: overcommit is not checked.
    :ivar networks: the networks of the guest.
    :ivar pools: free devices of the host; names are unique.
    :ivar requests: device requests of the guest; names are unique.
    :ivar pack: prefer cells in use to empty ones, as
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
    """Return the host's cells in the order of preference.

    The first criterion is the number of free devices: most first for a guest
    that requests devices, fewest first for others, packed or not. Then come free
    CPUs, then free memory: most first, or least first if packed. If the guest
    takes all cells, the order stays unchanged.
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
