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


"""Hosts, guests, networks and devices as Nova has them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from nova import objects
from nova.objects import fields
from nova.pci import stats

from os_acc.numa.devices import DevicePool, DeviceRequest
from os_acc.numa.question import Question
from os_acc.objects.numa import (
    InstanceNUMANetworks,
    InstanceNUMATopology,
    NUMACell,
    NUMANetworkInfo,
    NUMATopology,
)
from tests.unit.numa import cases

_TYPES = {
    cases.VF: fields.PciDeviceType.SRIOV_VF,
    cases.PF: fields.PciDeviceType.SRIOV_PF,
    cases.VDPA: fields.PciDeviceType.VDPA,
}


def host(topology: NUMATopology) -> Any:
    return objects.NUMATopology(cells=[host_cell(cell) for cell in topology.cells])


def host_cell(cell: NUMACell) -> Any:
    return objects.NUMACell(
        id=cell.id,
        cpuset=set(cell.cpuset),
        pcpuset=set(cell.pcpuset),
        memory=cell.memory,
        cpu_usage=cell.cpu_usage,
        memory_usage=cell.memory_usage,
        pinned_cpus=set(cell.pinned_cpus),
        siblings=[set(core) for core in cell.siblings],
        mempages=[
            objects.NUMAPagesTopology(**dataclasses.asdict(pages))
            for pages in cell.mempages
        ],
        network_metadata=metadata(cell.network_info),
        socket=cell.socket,
    )


def metadata(networks: NUMANetworkInfo | InstanceNUMANetworks) -> Any:
    return objects.NetworkMetadata(
        physnets=set(networks.physnets), tunneled=networks.tunneled
    )


def guest(topology: InstanceNUMATopology) -> Any:
    return objects.InstanceNUMATopology(
        cells=[
            objects.InstanceNUMACell(
                id=place,
                cpuset=set(cell.cpuset),
                pcpuset=set(cell.pcpuset),
                memory=cell.memory,
                pagesize=cell.pagesize,
                cpu_policy=cell.cpu_policy.value,
                cpu_thread_policy=cell.cpu_thread_policy
                and cell.cpu_thread_policy.value,
            )
            for place, cell in enumerate(topology.cells)
        ],
        emulator_threads_policy="isolate"
        if topology.emulator_threads_isolated
        else None,
    )


def limits(question: Question) -> Any:
    if question.limits is None:
        assert question.networks == InstanceNUMANetworks()
        return None
    return objects.NUMATopologyLimits(
        cpu_allocation_ratio=question.limits.cpu_allocation_ratio,
        ram_allocation_ratio=question.limits.ram_allocation_ratio,
        network_metadata=metadata(question.networks),
    )


class _Cells:
    """A host that its devices know; a copy of them has the same."""

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
