# SPDX-License-Identifier: Apache-2.0

"""One of the two hosts dies while a running guest moves with its accelerators."""

import contextlib
from unittest import mock

import pytest

from tests.functional.nova import mdev_hosts, test_live_migration
from tests.functional.nova.mdev_hosts import PARENTS
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
