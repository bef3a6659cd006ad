# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""What is asked when a host is to carry a guest."""

from __future__ import annotations

import dataclasses

from os_acc.numa.devices import DevicePool, DeviceRequest
from os_acc.numa.networks import NO_NETWORKS
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
