# SPDX-License-Identifier: Apache-2.0

"""Nova's services on two compute nodes, and where the accelerators are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.functional.nova import compute_nodes, libvirt_servers
from tests.functional.nova.compute_nodes import ComputeNode

FIRST, SECOND = compute_nodes.GPUS
GPU = "resources{}:CUSTOM_ACCELERATOR_GPU"
ONE = {GPU.format(1): "1"}
TWO = ONE | {GPU.format(2): "1", "group_policy": "isolate"}


class Cloud:
    """The services, and where the accelerators are."""

    def __init__(
        self, nova: libvirt_servers.LibvirtServers, nodes: Mapping[str, ComputeNode]
    ) -> None:
        self.nova, self.nodes = nova, nodes

    def check_attached(
        self, server: dict[str, Any], number: int, host: str = FIRST
    ) -> None:
        """Check a server whose guest has this number of accelerators."""
        found = self.check_held(server["id"], number, host)
        assert sorted(self.nova.hostdevs(host, server)) == found

    def check_held(self, consumer: str, number: int, host: str = FIRST) -> list[str]:
        """Check the leases of a consumer; return the addresses of its GPUs."""
        node = self.nodes[host]
        leases = node.leases().get(consumer, [])
        assert [lease.state.value for lease in leases] == ["held"] * number
        found = sorted(str(lease.address) for lease in leases)
        assert node.bench.drivers(*found) == ["vfio-pci"] * number
        allocated = self.nova.allocations(consumer)
        for address in found:
            assert node.provider(address) in allocated
        return found

    def check_free(self, host: str = FIRST) -> None:
        """Check a host whose accelerators are all free."""
        node = self.nodes[host]
        assert node.leases() == {}
        assert "vfio-pci" not in node.bench.drivers(*node.gpus)


@pytest.fixture
def cloud(nodes: dict[str, ComputeNode]) -> Iterator[Cloud]:
    """Start Nova with one compute node."""
    nova = libvirt_servers.LibvirtServers(
        lambda name, interval: nodes[name].deferred(interval)
    )
    nova.setUp()
    try:
        nova.start_compute(FIRST)
        yield Cloud(nova, nodes)
    finally:
        nova.doCleanups()


@pytest.fixture
def pair(cloud: Cloud) -> Cloud:
    """Start a second compute node."""
    cloud.nova.start_compute(SECOND)
    return cloud
