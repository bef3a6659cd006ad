# SPDX-License-Identifier: Apache-2.0

"""Nova keeps or deletes the allocation of a server in each operation.

The leases of os_acc follow: doc/source/user/server-operations.rst.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from os_acc.testing import HostSpec, TestHost, hosts
from tests.functional.nova import nova_cases, servers

HOST = "compute1"
GPU = "0000:17:00.0"
UNIT = {"CUSTOM_ACCELERATOR_GPU": 1}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TestHost]:
    """Yield a host with one GPU."""
    spec = HostSpec(hosts.gpu("0000:17", 0))
    named = ['{"address": "0000:17:00.*"}']
    with TestHost(tmp_path, spec, device_spec=named, node_name=HOST) as bench:
        yield bench


@pytest.fixture
def nova(bench: TestHost) -> Iterator[servers.Servers]:
    """Start Nova with that host as its compute node."""
    services = servers.Servers(
        HOST, lambda tree, name: bench.manager.update_provider_tree(tree, name)
    )
    with nova_cases.running(services) as found:
        yield found


@pytest.fixture
def server(nova: servers.Servers) -> dict[str, Any]:
    """Return an active server with the GPU."""
    return nova.create({f"resources1:{name}": str(n) for name, n in UNIT.items()})


@pytest.fixture
def has_gpu(
    bench: TestHost, nova: servers.Servers, server: dict[str, Any]
) -> Callable[[], bool]:
    """Return a function: whether Placement has the GPU allocated to the server."""
    provider = bench.provider(GPU).uuid

    def is_allocated() -> bool:
        found = nova.allocations(server["id"]).get(provider)
        assert found in (None, UNIT)
        return found is not None

    assert is_allocated()
    return is_allocated


def test_a_stopped_server_keeps_its_allocation(nova, server, has_gpu):
    nova.stop(server)
    assert has_gpu()
    nova.start(server)
    assert has_gpu()


def test_a_paused_suspended_or_locked_server_keeps_its_allocation(
    nova, server, has_gpu
):
    for before, after in (
        (nova.pause, nova.unpause),
        (nova.suspend, nova.resume),
        (nova.lock, nova.unlock),
    ):
        before(server)
        assert has_gpu()
        after(server)
        assert has_gpu()


@pytest.fixture
def check_guest(
    nova: servers.Servers, server: dict[str, Any], has_gpu: Callable[[], bool]
) -> Iterator[Callable[..., None]]:
    """Return a check that an operation keeps the allocation and the guest's process.

    os_acc then has nothing to do: no row of the manual's table names a call for it.
    """
    before = list(nova.guest_calls)

    def check(operation: Callable[[dict[str, Any]], None]) -> None:
        operation(server)
        assert has_gpu()
        assert nova.guest_calls == before

    yield check
    # An operation that ends the process is noted.
    nova.stop(server)
    assert nova.guest_calls == [*before, "power_off"]


def test_password_and_crash_dump_keep_the_allocation_and_the_guest(nova, check_guest):
    check_guest(nova.set_password)
    check_guest(nova.dump)
    assert len(nova.dumps) == 1


def test_an_operation_beside_the_guest_keeps_the_allocation_and_the_guest(
    nova, check_guest
):
    for operation in (
        nova.snapshot,
        nova.backup,
        nova.add_port,
        nova.remove_port,
        nova.add_volume,
        nova.remove_volume,
        nova.rename,
        nova.set_state,
    ):
        check_guest(operation)


def test_a_shelved_server_keeps_its_allocation_until_it_is_offloaded(
    nova, server, has_gpu
):
    nova.shelve(server)
    assert has_gpu()
    nova.unshelve(server)
    assert has_gpu()
    nova.shelve(server)
    nova.offload(server)
    assert not has_gpu()


def test_an_unshelved_server_has_an_allocation_again(nova, server, has_gpu):
    nova.shelve(server)
    nova.offload(server)
    nova.unshelve(server)
    assert has_gpu()


def test_a_soft_deleted_server_keeps_its_allocation_until_it_is_reclaimed(
    nova, server, has_gpu
):
    nova.delete_softly(server)
    assert has_gpu()
    nova.reclaim(server)
    assert not has_gpu()


def test_a_restored_server_has_kept_its_allocation(nova, server, has_gpu):
    before = nova.allocations(server["id"])
    nova.delete_softly(server)
    nova.restore(server)
    assert nova.allocations(server["id"]) == before
    assert has_gpu()


def test_a_deleted_server_has_no_allocation(nova, server, has_gpu):
    nova.delete(server)
    assert not has_gpu()
