# SPDX-License-Identifier: Apache-2.0

"""Make objects of Nova 34 from values of os_acc.

Nova is not imported: ``objects`` is ``nova.objects`` after ``register_all()``, or a
double of it.
"""

from __future__ import annotations

from typing import Any

from os_acc.objects.numa import (
    InstanceNUMACell,
    InstanceNUMANetworks,
    InstanceNUMATopology,
    NUMACell,
    NUMANetworkInfo,
    NUMATopology,
)


def networks_to_nova(
    networks: NUMANetworkInfo | InstanceNUMANetworks, objects: Any
) -> Any:
    """Return a ``NetworkMetadata``, Nova's class for guest and host networks."""
    return objects.NetworkMetadata(
        physnets=set(networks.physnets), tunneled=networks.tunneled
    )


def host_to_nova(topology: NUMATopology, objects: Any) -> Any:
    """Return a ``NUMATopology`` without distances.

    For Nova's resource tracker the usage must be zero: the tracker adds the
    usage of each guest.
    """
    return objects.NUMATopology(
        cells=[_host_cell_to_nova(cell, objects) for cell in topology.cells]
    )


def guest_to_nova(topology: InstanceNUMATopology, objects: Any) -> Any:
    """Return an ``InstanceNUMATopology`` that is not assigned to a host."""
    return objects.InstanceNUMATopology(
        cells=[
            _guest_cell_to_nova(number, cell, objects)
            for number, cell in enumerate(topology.cells)
        ],
        emulator_threads_policy="isolate"
        if topology.emulator_threads_isolated
        else None,
    )


def _host_cell_to_nova(cell: NUMACell, objects: Any) -> Any:
    return objects.NUMACell(
        id=cell.id,
        cpuset=set(cell.cpuset),
        pcpuset=set(cell.pcpuset),
        memory=cell.memory,
        siblings=[set(core) for core in cell.siblings],
        mempages=[
            objects.NUMAPagesTopology(
                size_kb=pages.size_kb,
                total=pages.total,
                used=pages.used,
                reserved=pages.reserved,
            )
            for pages in cell.mempages
        ],
        socket=cell.socket,
        network_metadata=networks_to_nova(cell.network_info, objects),
        cpu_usage=cell.cpu_usage,
        memory_usage=cell.memory_usage,
        pinned_cpus=set(cell.pinned_cpus),
    )


def _guest_cell_to_nova(number: int, cell: InstanceNUMACell, objects: Any) -> Any:
    threads = cell.cpu_thread_policy
    return objects.InstanceNUMACell(
        id=number,
        cpuset=set(cell.cpuset),
        pcpuset=set(cell.pcpuset),
        memory=cell.memory,
        pagesize=cell.pagesize,
        cpu_policy=cell.cpu_policy.value,
        cpu_thread_policy=None if threads is None else threads.value,
    )
