# SPDX-License-Identifier: Apache-2.0

"""Convert hosts, guests, networks and devices to Nova's objects."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from nova import objects
from nova.objects import fields
from nova.pci import stats

from os_acc.numa.fit import DeviceRequest, Question
from os_acc.numa.nearest import DevicePool
from os_acc.objects.numa import (
    InstanceNUMATopology,
    NUMALimits,
    NUMATopology,
)
from tests.unit.numa import cases, to_nova

_TYPES = {
    cases.VF: fields.PciDeviceType.SRIOV_VF,
    cases.PF: fields.PciDeviceType.SRIOV_PF,
    cases.VDPA: fields.PciDeviceType.VDPA,
}


def host(topology: NUMATopology) -> Any:
    return to_nova.host_to_nova(topology, objects)


def guest(topology: InstanceNUMATopology) -> Any:
    return to_nova.guest_to_nova(topology, objects)


def limits(question: Question) -> Any:
    """Return Nova's limits: with unlimited resources, Nova drops the networks."""
    return None if question.limits is None else limits_with_networks(question)


def limits_with_networks(question: Question) -> Any:
    """Return the limits for Nova's check of networks, limited or not."""
    ratios = question.limits or NUMALimits(math.inf, math.inf)
    return objects.NUMATopologyLimits(
        cpu_allocation_ratio=ratios.cpu_allocation_ratio,
        ram_allocation_ratio=ratios.ram_allocation_ratio,
        network_metadata=to_nova.networks_to_nova(question.networks, objects),
    )


class _Cells:
    """A host for its devices; a copy of the devices keeps it."""

    def __init__(self, topology: NUMATopology) -> None:
        self.cells = topology.cells

    def __deepcopy__(self, memo: Any) -> _Cells:
        return self


def device_stats(topology: NUMATopology, pools: Sequence[DevicePool]) -> Any:
    made = stats.PciDeviceStats(_Cells(topology), dev_filter=object())
    made.pools = [pool_of(pool) for pool in pools]
    return made


def pool_of(pool: DevicePool) -> dict[str, Any]:
    kind, product, _number = pool.name.split(":")
    return {
        "name": pool.name,
        "product_id": product,
        "dev_type": _TYPES[kind],
        "numa_node": pool.node,
        "count": pool.count,
    }


def device_request(request: DeviceRequest) -> Any:
    kind, product, _number = request.name.split(":")
    spec = {"product_id": product}
    if kind != cases.ANY:
        spec["dev_type"] = _TYPES[kind]
    return objects.InstancePCIRequest(
        request_id=None,
        count=request.count,
        spec=[spec],
        numa_policy=request.policy.value,
    )


def device_requests(requests: Sequence[DeviceRequest]) -> list[Any]:
    return [device_request(request) for request in requests]
