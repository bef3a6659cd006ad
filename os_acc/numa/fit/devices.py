# SPDX-License-Identifier: Apache-2.0

"""Check whether all device requests of a guest can be served at once.

The policy of a request selects its devices (:mod:`os_acc.numa.affinity`). A
network flow assigns them, so that no request takes a device that another one
depends on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from os_acc.numa.affinity import GuestCells, allows
from os_acc.numa.flow import Flow
from os_acc.objects.numa import NUMAPolicy, NUMATopology


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


def all_served(
    topology: NUMATopology,
    cells: Sequence[int],
    pools: Sequence[DevicePool],
    requests: Sequence[DeviceRequest],
) -> bool:
    """Return whether the pools serve all requests at once.

    :param cells: ids of the host cells of the guest; none: any cell.
    """
    guest = GuestCells(topology, tuple(cells))
    source, sink, first_pool = 0, 1, 2 + len(requests)
    flow = Flow(first_pool + len(pools))
    for at, pool in enumerate(pools, first_pool):
        flow.add(at, sink, pool.count)
    for at, request in enumerate(requests, 2):
        flow.add(source, at, request.count)
        for place, pool in enumerate(pools, first_pool):
            if pool.name in request.pools and allows(
                request.policy, guest.affinity(pool.node)
            ):
                flow.add(at, place, request.count)
    wanted = sum(request.count for request in requests)
    return flow.run(source, sink, wanted)[0] == wanted
