# SPDX-License-Identifier: Apache-2.0

"""Nova's services whose scheduler has the filter and the weigher of os_acc.

Each host has two NUMA cells, and a GPU in each.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from keystoneauth1 import exceptions as keystone_exceptions
from nova import context, objects
from nova.conf import CONF
from nova.scheduler.client import report

from os_acc.nova import scheduling
from os_acc.nova.initialization import DeferredNode
from os_acc.testing import FunctionSpec, HostSpec, TestHost, hosts
from tests.functional.nova import libvirt_servers
from tests.functional.nova.cloud import FIRST
from tests.functional.nova.compute_nodes import GPUS, ComputeNode

FILTER = "os_acc.nova.filters.AcceleratorFilter"
WEIGHER = "os_acc.nova.weighers.AcceleratorWeigher"
GROUP = "os_acc_scheduler"
#: The addresses of the two accelerators of each node.
_SLOTS = {name: addresses[:2] for name, addresses in GPUS.items()}


class ScheduledServers(libvirt_servers.LibvirtServers):
    """The services, with ``NUMATopologyFilter`` and the filters of the manual.

    :param with_filter: whether the scheduler has the filter of os_acc.
    """

    def __init__(
        self, nodes: Callable[[str, float], DeferredNode], *, with_filter: bool = True
    ) -> None:
        super().__init__(nodes)
        self._with_filter = with_filter

    def setUp(self) -> None:
        scheduling.host_providers.cache_clear()
        super().setUp()

    def _setup_scheduler_service(self) -> Any:
        group = "filter_scheduler"
        enabled = [*CONF.filter_scheduler.enabled_filters, "NUMATopologyFilter"]
        if self._with_filter:
            enabled.append("AcceleratorFilter")
        available = ["nova.scheduler.filters.all_filters", FILTER]
        self.flags(available_filters=available, group=group)
        self.flags(enabled_filters=enabled, group=group)
        self.flags(weight_classes=[WEIGHER], group=group)
        service = super()._setup_scheduler_service()
        self.flags(usage_lifetime=0.0, group=GROUP)
        return service

    def cells_of(self, server: dict[str, Any]) -> list[int]:
        """Return the host cells of a guest."""
        found = objects.Instance.get_by_uuid(
            context.get_admin_context(), server["id"]
        ).numa_topology
        return [cell.id for cell in found.cells]

    def create_several(
        self, extra_specs: dict[str, str], number: int, vcpus: int = 1
    ) -> list[dict[str, Any]]:
        """Create servers in one request; return them when they are active."""
        flavor = self._create_flavor(
            memory_mb=512, vcpu=vcpus, disk=1, ephemeral=0, extra_spec=extra_specs
        )
        body = self._build_server(flavor_id=flavor, networks="none")
        body |= {
            "min_count": number,
            "max_count": number,
            "return_reservation_id": True,
        }
        reservation = self.api.api_post("/servers", {"server": body}).body
        query = f"/servers/detail?reservation_id={reservation['reservation_id']}"
        made = self.api.api_get(query).body["servers"]
        return [self._wait_for_state_change(each, "ACTIVE") for each in made]

    @contextlib.contextmanager
    def summaries_refused(self) -> Iterator[list[str]]:
        """Let Placement give no answer to the filter and the weigher, in a block.

        :returns: the paths of their requests.
        """
        refused: list[str] = []
        get = report.SchedulerReportClient.get

        def answer(client: Any, url: str, *args: Any, **kwargs: Any) -> Any:
            if "in_tree" not in url:
                return get(client, url, *args, **kwargs)
            refused.append(url)
            raise keystone_exceptions.ConnectFailure("placement is down")

        with mock.patch.object(report.SchedulerReportClient, "get", answer):
            yield refused


@contextlib.contextmanager
def two_cells(
    directory: Path, cells: Mapping[str, tuple[int, int]]
) -> Iterator[dict[str, ComputeNode]]:
    """Yield the nodes, each with two GPUs.

    :param cells: the NUMA cell of each GPU, by node.
    """
    functions = [
        function
        for name, addresses in _SLOTS.items()
        for gpu, cell in zip(addresses, cells[name], strict=True)
        for function in hosts.gpu(gpu.rpartition(":")[0], cell)
    ]
    with _nodes(directory, functions) as found:
        yield found


@contextlib.contextmanager
def two_regions(
    directory: Path, functions: tuple[str, str]
) -> Iterator[dict[str, ComputeNode]]:
    """Yield the nodes; the first has two FPGA cards with these functions."""
    cards = [
        hosts.dfl(address.rpartition(":")[0], 0, functions=(function,))
        for address, function in zip(_SLOTS[FIRST], functions, strict=True)
    ]
    with _nodes(directory, cards) as found:
        yield found


@contextlib.contextmanager
def _nodes(
    directory: Path, functions: Sequence[FunctionSpec]
) -> Iterator[dict[str, ComputeNode]]:
    with TestHost(directory, HostSpec(tuple(functions))) as bench:
        yield {name: ComputeNode(name, bench, gpus) for name, gpus in _SLOTS.items()}
