# SPDX-License-Identifier: Apache-2.0

"""What is asked when a host is to carry a guest."""

from __future__ import annotations

import dataclasses

from os_acc.numa.fit.devices import DevicePool, DeviceRequest
from os_acc.numa.fit.networks import NO_NETWORKS
from os_acc.objects.numa import (
    InstanceNUMANetworks,
    InstanceNUMATopology,
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
