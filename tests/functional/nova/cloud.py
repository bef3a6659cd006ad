# SPDX-License-Identifier: Apache-2.0

"""Nova's services on two compute nodes, and where the accelerators are.

Each check of a server or a host compares five records: the leases, the journal, the
allocations in Placement, the definitions of the guests, and the drivers of the host.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import pytest

from tests.functional.nova import compute_nodes, libvirt_servers, operations
from tests.functional.nova.compute_nodes import ComputeNode

FIRST, SECOND = compute_nodes.GPUS
_CLASS = "CUSTOM_ACCELERATOR_GPU"
GPU = "resources{}:" + _CLASS
ONE = {GPU.format(1): "1"}
TWO = ONE | {GPU.format(2): "1", "group_policy": "isolate"}
#: An image of Nova's fake of Glance that differs from that of a new server.
OTHER_IMAGE = "70a599e0-31e7-49b7-b260-868f441e862b"


class Cloud:
    """The services, and where the accelerators are."""

    def __init__(
        self, nova: libvirt_servers.LibvirtServers, nodes: Mapping[str, ComputeNode]
    ) -> None:
        self.nova, self.nodes = nova, nodes

    def check_attached(
        self, server: dict[str, Any], number: int, host: str = FIRST
    ) -> None:
        """Check a server whose guest runs with this number of accelerators."""
        found = self.check_held(server["id"], number, host)
        assert self.nova.is_running(host, server)
        assert sorted(self.nova.hostdevs(host, server)) == found

    def check_kept(
        self, server: dict[str, Any], number: int, host: str = FIRST
    ) -> None:
        """Check a server that keeps its accelerators while its guest does not run."""
        self.check_held(server["id"], number, host)
        assert not self.nova.is_running(host, server)

    def check_held(self, consumer: str, number: int, host: str = FIRST) -> list[str]:
        """Check a consumer that holds accelerators; return the addresses of its GPUs.

        Its server, or the server of its migration, has no guest on the host, or one
        that the caller checks.
        """
        node = self.nodes[host]
        leases = node.leases().get(consumer, [])
        assert [lease.state.value for lease in leases] == ["held"] * number
        found = sorted(str(lease.address) for lease in leases)
        node.check_journal()
        allocated = self.nova.allocations(consumer)
        assert {
            provider: amounts
            for provider, amounts in allocated.items()
            if provider in node.providers
        } == {node.provider(address): {_CLASS: 1} for address in found}
        node.check_host()
        return found

    def check_free(
        self, host: str = FIRST, *, allocated_to: Collection[str] = ()
    ) -> None:
        """Check a host whose accelerators are all free.

        :param allocated_to: consumers whose allocations Nova keeps.
        """
        node = self.nodes[host]
        assert node.leases() == {}
        node.check_journal()
        # Nova deletes the allocation last.
        operations.wait_until(
            lambda: self.nova.consumers(node.providers),
            lambda found: found <= set(allocated_to),
        )
        assert set(node.gpus).isdisjoint(self.nova.devices_in_use(host))
        node.check_host()

    @contextlib.contextmanager
    def no_privileged_write(self) -> Iterator[None]:
        """Check that os_acc writes nothing to the host in a block."""
        kernel = next(iter(self.nodes.values())).bench.kernel
        before = len(kernel.writes())
        yield
        assert kernel.writes(before) == []


@pytest.fixture
def cloud(nodes: dict[str, ComputeNode]) -> Iterator[Cloud]:
    """Start Nova with one compute node."""
    with started(libvirt_servers.LibvirtServers, nodes) as found:
        found.nova.start_compute(FIRST)
        yield found


@contextlib.contextmanager
def started(
    kind: Callable[..., libvirt_servers.LibvirtServers],
    nodes: Mapping[str, ComputeNode],
    **parameters: Any,
) -> Iterator[Cloud]:
    """Start Nova's services of this kind, without compute nodes.

    :param parameters: of the kind.
    """
    with libvirt_servers.running(kind, nodes, **parameters) as nova:
        yield Cloud(nova, nodes)


@pytest.fixture
def pair(cloud: Cloud) -> Cloud:
    """Start a second compute node."""
    cloud.nova.start_compute(SECOND)
    return cloud


@pytest.fixture(params=[ONE, TWO], ids=["one group", "two groups"])
def specs(request: pytest.FixtureRequest) -> dict[str, str]:
    """Return the extra specs of a flavor."""
    found: dict[str, str] = request.param
    return found


#: For a test that no row of doc/source/admin/nova-server-operations.rst names.
two_groups = pytest.mark.parametrize("specs", [TWO], ids=["two groups"])


@pytest.fixture
def number(specs: dict[str, str]) -> int:
    """Return the number of accelerators that the flavor requests."""
    return sum(name.startswith("resources") for name in specs)


@pytest.fixture
def server(cloud: Cloud, specs: dict[str, str]) -> dict[str, Any]:
    """Return an active server of the flavor on the first host."""
    return cloud.nova.create(specs, host=FIRST)


@pytest.fixture
def immediately(cloud: Cloud) -> None:
    """Release a lease that is proven unused without a delay."""
    cloud.nova.flags(reconcile_age=0.0, group="os_acc_driver")
