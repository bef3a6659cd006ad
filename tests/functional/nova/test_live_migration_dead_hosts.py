# SPDX-License-Identifier: Apache-2.0

"""One of the two hosts dies while a running guest moves with its accelerators."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from nova.compute import manager

from tests.functional.nova import mdev_hosts, test_live_migration
from tests.functional.nova.mdev_hosts import PARENTS, UNITS, MdevNode
from tests.functional.nova.test_driver_mdevs import ONE
from tests.functional.nova.test_live_migration import check_both, check_stayed, stopped

mdev_nodes, mdev_cloud = mdev_hosts.mdev_nodes, mdev_hosts.mdev_cloud
pair, server = test_live_migration.pair, test_live_migration.server

FIRST, SECOND = PARENTS
_ROLLBACK = "nova.compute.rpcapi.ComputeAPI.rollback_live_migration_at_destination"


@pytest.mark.parametrize("is_lost", [False, True], ids=["delivered", "lost"])
def test_the_target_dies(pair, server, is_lost):
    """Nova's message waits for the target, unless the message broker loses it."""
    held = pair.check_attached(server, FIRST, 2)
    broker = mock.patch(_ROLLBACK) if is_lost else contextlib.nullcontext()
    with broker:
        with stopped(pair, server):
            pair.nova.stop_host(SECOND)
            check_both(pair, server)
        pair.nova._wait_for_migration_status(server, ["failed", "error"])
        pair.nova._wait_for_server_parameter(server, {"OS-EXT-STS:task_state": None})
    assert pair.check_attached(server, FIRST, 2) == held
    assert pair.nova.allocations(server["id"]).keys() >= pair.nodes[FIRST].providers
    pair.nova.reboot(server)
    assert pair.check_attached(server, FIRST, 2) == held
    check_both(pair, server)
    pair.nova.start_host(SECOND)
    check_stayed(pair, server)
    # The units are free again.
    pair.nova.live_migrate(server)
    pair.check_attached(server, SECOND, 2)
    pair.check_free(FIRST)


@pytest.mark.parametrize("is_defined", [True, False], ids=["defined", "undefined"])
def test_the_source_dies_and_the_server_is_evacuated_to_the_target(
    pair, server, is_defined
):
    held = pair.check_attached(server, FIRST, 2)
    with stopped(pair, server):
        move = pair.nova.migration(server)
        pair.nova.stop_host(FIRST)
        end = pair.nova.end_guests if is_defined else pair.nova.forget_guests
        end(FIRST)
        # Its task has not ended: the leases of the target stay.
        pair.nova.reconcile(SECOND)
        check_both(pair, server)
        pair.nova.evacuate(server)
        arrived = pair.check_attached(server, SECOND, 2)
        pair.nova.reconcile(SECOND)
        assert pair.check_attached(server, SECOND, 2) == arrived
        left = pair.nodes[FIRST].leases()[server["id"]]
        assert sorted(each.uuid for each in left) == held
        pair.nova.start_host(FIRST)
        pair.nova.reconcile(FIRST)
        pair.check_free(FIRST)
        assert not pair.nova.is_defined(FIRST, server)
        assert pair.check_attached(server, SECOND, 2) == arrived
        pair.nova.delete(server)
        pair.check_free(SECOND)
        # Nova leaves the migration running, with an allocation that no lease has.
        assert pair.nova.allocations(move).keys() >= pair.nodes[FIRST].providers


def test_the_source_ends_when_the_guest_has_arrived(pair, server):
    """Nova does not learn of the arrival: for it, the server stays on the source."""

    def check_arrived() -> None:
        assert pair.nova.is_running(SECOND, server)

    with (
        mock.patch.object(manager.ComputeManager, "_post_live_migration"),
        mock.patch("futurist.GreenThreadPoolExecutor.shutdown"),
    ):
        pair.nova.begin_live_migration(server)
        pair.nova._wait_for_assert(check_arrived)
        pair.nova.forget_guests(FIRST)
        pair.nova.restart_compute_service(FIRST)
    pair.nova._wait_for_server_parameter(server, {"OS-EXT-STS:task_state": None})
    for host in PARENTS:
        pair.nova.reconcile(host)
    check_both(pair, server)
    assert pair.nova.host_of(server) == FIRST
    check_arrived()


class TestTwoProvidersAtTheTarget:
    """The second host has one more GPU, so that it has two providers."""

    @pytest.fixture
    def mdev_nodes(self, tmp_path: Path) -> Iterator[dict[str, MdevNode]]:
        with mdev_hosts.nodes_with_gpus(tmp_path, (0, 0, 0)) as found:
            yield found

    def test_an_evacuation_in_mid_move_fails_once(self, pair):
        """Nova keeps the units of the move, and adds those that it evacuates to."""
        server = pair.nova.create(ONE, host=FIRST)
        with stopped(pair, server):
            pair.nova.stop_host(FIRST)
            # The GPU of the move has no unit left: Nova selects the other one.
            for _ in range(UNITS - 1):
                pair.nova.create(ONE, host=SECOND)
            pair.nova.end_guests(FIRST)
            pair.nova._evacuate_server(
                server, expected_state="ERROR", expected_migration_status="failed"
            )
            fault = pair.nova.api.get_server(server["id"])["fault"]["message"]
            assert "2 CUSTOM_ACCELERATOR_MDEV are allocated" in fault
            assert pair.nova.allocations(server["id"]) == {}
            pair.nova.reconcile(SECOND)
            assert server["id"] not in pair.nodes[SECOND].leases()
            pair.nova._evacuate_server(server, expected_state="ACTIVE")
            (lease,) = pair.nodes[SECOND].leases()[server["id"]]
            assert pair.nova.mdevs(SECOND, server) == [lease.uuid]
            pair.nova.start_host(FIRST)
            pair.nova.reconcile(FIRST)
            pair.check_free(FIRST)
            pair.nova.reconcile(SECOND)
            assert pair.nodes[SECOND].leases()[server["id"]] == [lease]
