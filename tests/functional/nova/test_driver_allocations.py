# SPDX-License-Identifier: Apache-2.0

"""Leases whose consumer has no allocation in Placement, or one that Nova forgot."""

from __future__ import annotations

import logging
from typing import Any
from unittest import mock

import pytest
from nova import context

from os_acc.nova.reconciliation import LeaseReconciler
from tests.functional.nova import cloud as clouds
from tests.functional.nova import compute_nodes
from tests.functional.nova.cloud import FIRST, ONE, SECOND, TWO, Cloud

cloud, nodes, pair = clouds.cloud, compute_nodes.nodes, clouds.pair
server, specs, number = clouds.server, clouds.specs, clouds.number
immediately = clouds.immediately

_DRIVER = "nova.virt.libvirt.driver.LibvirtDriver."


def fail_to_migrate(pair: Cloud, server: dict[str, Any]) -> None:
    """Let a migration fail on its destination; the source keeps the lease."""
    with mock.patch(_DRIVER + "finish_migration", side_effect=OSError("no space left")):
        pair.nova.fail_to_migrate(server)


def delete_allocation(pair: Cloud, server: dict[str, Any]) -> None:
    """Delete the allocation of a server, as an operator can."""
    pair.nova.deallocate(server["id"])


def heal(pair: Cloud, server: dict[str, Any]) -> None:
    """Let Nova try to heal that: it requests the accelerator of the node itself."""
    pair.nova.deallocate(server["id"])
    assert pair.nova.heal(server) == 3
    assert pair.nova.allocations(server["id"]) == {}


def delete_locally(pair: Cloud, server: dict[str, Any]) -> None:
    """Delete a server while its host is down."""
    pair.nova.stop_host(FIRST)
    pair.nova.delete(server)
    pair.nova.start_host(FIRST)


@pytest.mark.parametrize(
    "lose", [fail_to_migrate, delete_allocation, heal, delete_locally]
)
def test_a_leased_unit_without_an_allocation_is_not_offered(pair, server, number, lose):
    gpus = pair.check_held(server["id"], number)
    lose(pair, server)
    assert pair.nodes[FIRST].leases()
    pair.nova.reconcile(FIRST)
    pair.nova.update_inventory()
    for gpu in gpus:
        assert pair.nova.reserved(pair.nodes[FIRST].provider(gpu)) == 1
    for _ in range(len(pair.nodes[FIRST].gpus) - number):
        other = pair.nova.create(ONE, host=FIRST)
        assert set(pair.nova.hostdevs(FIRST, other)).isdisjoint(gpus)


@clouds.two_groups
def test_a_move_in_progress_reserves_nothing(pair, server, number):
    """The migration has the allocation, and the server still has the lease."""
    found = []

    def move(host: Any, _context: object, instance: Any, *_: object) -> str:
        assert pair.nova.allocations(pair.nova.migration(server))
        pair.nova.reconcile(FIRST)
        found.append(pair.nova.driver(FIRST)._reconciler.unallocated)
        host.power_off(instance)
        return "[]"

    with mock.patch(_DRIVER + "migrate_disk_and_power_off", new=move):
        pair.nova.migrate(server)
    assert found == [frozenset()]
    pair.nova.update_inventory()
    pair.nova.revert(server)
    pair.check_attached(server, number)


@pytest.mark.usefixtures("immediately")
def test_the_reservation_ends_with_the_lease(pair):
    server = pair.nova.create(ONE, host=FIRST)
    (gpu,) = pair.check_held(server["id"], 1)
    fail_to_migrate(pair, server)
    pair.nova.reconcile(FIRST)
    pair.nova.forget_guests(FIRST)
    pair.nova.reconcile(FIRST)
    pair.nova.update_inventory()
    assert pair.nova.reserved(pair.nodes[FIRST].provider(gpu)) == 0
    for _ in range(4):
        pair.nova.create(ONE, host=FIRST)


@pytest.mark.usefixtures("immediately")
@clouds.two_groups
def test_without_an_answer_of_placement_a_reservation_stays(cloud, server, caplog):
    cloud.nova.create(ONE)
    cloud.nova.deallocate(server["id"])
    cloud.nova.reconcile(FIRST)
    reserved = cloud.nova.driver(FIRST)._reconciler.unallocated
    assert len(reserved) == 2
    caplog.clear()
    with cloud.nova.placement_down():
        cloud.nova.reconcile(FIRST)
    assert cloud.nova.driver(FIRST)._reconciler.unallocated == reserved
    (warning,) = (
        each
        for each in caplog.records
        if each.name == "os_acc.nova.reconciliation" and each.levelno >= logging.WARNING
    )
    assert "until Placement answers" in warning.getMessage()


@pytest.mark.usefixtures("immediately")
def test_a_failed_revert_and_a_delete_leave_nothing(pair, server, number, caplog):
    """Nova keeps the allocation of the migration for ever."""
    pair.nova.migrate(server)
    migration = pair.nova.migration(server)
    with mock.patch(_DRIVER + "destroy", side_effect=OSError("no answer")):
        pair.nova.api.post_server_action(server["id"], {"revertResize": None})
        pair.nova.wait_for_end(server, "revertResize", "compute_revert_resize")
    pair.nova.reconcile(FIRST)
    pair.check_held(migration, number)
    pair.nova.reset_state(server)
    pair.nova.delete(server)
    pair.check_free(SECOND)
    pair.nova.forget_guests(FIRST)
    pair.nova.reconcile(FIRST)
    command = f"openstack resource provider allocation delete {migration}"
    assert command in caplog.text
    pair.check_free(FIRST, allocated_to=[migration])
    pair.nova.deallocate(migration)
    pair.check_free(FIRST)


def test_an_unforeseen_error_does_not_end_the_rounds(cloud):
    cloud.nova.flags(reconcile_interval=0.1, group="os_acc_driver")
    rounds = mock.Mock(side_effect=[KeyError("a bug"), None, None])
    reconciler = cloud.nova.driver(FIRST)._reconciler
    reconciler.stop()
    another = LeaseReconciler(
        reconciler._node, reconciler._allocations, reconciler._guest_devices, FIRST
    )

    def run_once(_context: context.RequestContext) -> None:
        if rounds.call_count == 2:
            another.stop()
        rounds()

    with mock.patch.object(another, "run_once", run_once):
        another._run()
    assert rounds.call_count == 3


# -- a lease that an evacuated server has left -----------------------------------------


def leave_lease(pair: Cloud, server: dict[str, Any]) -> None:
    """Evacuate a server; its first host starts, and cannot release the lease."""
    pair.nova.stop_host(FIRST)
    pair.nova.evacuate(server)
    with pair.nodes[FIRST].unavailable():
        pair.nova.start_host(FIRST)
    assert pair.nova.driver(FIRST)._node._attempt()
    pair.nova.update_inventory()
    assert server["id"] in pair.nodes[FIRST].leases()


def test_a_server_that_comes_back_with_another_flavor_gets_new_leases(pair):
    server = pair.nova.create(ONE, host=FIRST)
    leave_lease(pair, server)
    pair.nova.resize(server, TWO)
    pair.nova.confirm(server)
    # Nova keeps the allocation on the host that was down.
    assert len(pair.nodes[FIRST].leases()[server["id"]]) == 2
    assert len(pair.nova.hostdevs(FIRST, server)) == 2
    assert pair.nova.is_running(FIRST, server)


@pytest.mark.usefixtures("immediately")
def test_a_server_that_comes_back_during_a_round_keeps_its_lease(pair):
    server = pair.nova.create(ONE, host=FIRST)
    leave_lease(pair, server)
    reconciler = pair.nova.driver(FIRST)._reconciler
    ask, asked = reconciler._guest_devices, []

    def come_back(consumer: str) -> Any:
        found = ask(consumer)
        if not asked:
            asked.append(consumer)
            pair.nova.migrate(server)
        return found

    with mock.patch.object(reconciler, "_guest_devices", come_back):
        pair.nova.reconcile(FIRST)
    assert asked == [server["id"]]
    assert pair.nova.is_running(FIRST, server)
    (lease,) = pair.nodes[FIRST].leases()[server["id"]]
    assert lease.state.value == "held"
    assert pair.nova.hostdevs(FIRST, server) == [str(lease.address)]
