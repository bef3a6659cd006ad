# SPDX-License-Identifier: Apache-2.0

"""Running guests move to another host with their accelerators, or stay as they are."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from nova import exception as nova_exception
from nova.compute import rpcapi
from nova.tests.fixtures import libvirt
from nova.tests.functional.api import client
from nova.virt.libvirt import driver

from os_acc import exception
from os_acc.attach import migration
from os_acc.nova.live_migration import MigratingDriver
from os_acc.plugins.mdev import MdevPlugin
from tests.functional.nova import mdev_hosts
from tests.functional.nova.libvirt_servers import MOVES_MDEVS
from tests.functional.nova.mdev_hosts import PARENTS, MdevCloud, MdevNode
from tests.functional.nova.test_driver_mdevs import ONE, TWO, nova_creates_none

mdev_nodes, mdev_cloud = mdev_hosts.mdev_nodes, mdev_hosts.mdev_cloud

FIRST, SECOND = PARENTS


@pytest.fixture
def pair(mdev_cloud: MdevCloud) -> Iterator[MdevCloud]:
    """Start Nova with two compute nodes; it must not create a mediated device."""
    with nova_creates_none():
        mdev_cloud.nova.flags(reconcile_age=0.0, group="os_acc_driver")
        for host in PARENTS:
            mdev_cloud.start(host, **MOVES_MDEVS)
        yield mdev_cloud


@pytest.fixture
def server(pair: MdevCloud) -> dict[str, Any]:
    """Return a server with two mediated devices on the first host."""
    return pair.nova.create(TWO, host=FIRST)


def check_moved(pair: MdevCloud, server: dict[str, Any], number: int = 2) -> None:
    pair.check_attached(server, SECOND, number)
    assert pair.nova.allocations(server["id"]).keys() >= pair.nodes[SECOND].providers
    assert pair.nova.allocations(pair.nova.migration(server)) == {}
    pair.check_free(FIRST)


def check_stayed(
    pair: MdevCloud, server: dict[str, Any], *, is_told: bool = True
) -> None:
    """Check a server after a failed migration; the target has nothing of it.

    :param is_told: whether Nova calls the driver of the target; else the comparison
        with Placement releases what the target has.
    """
    if is_told:
        pair.nodes[SECOND].wait_for_lease(server["id"], has_one=False)
    else:
        assert len(pair.nodes[SECOND].leases()[server["id"]]) == 2
        pair.nova.reconcile(SECOND)
    pair.check_attached(server, FIRST, 2)
    assert not pair.nodes[SECOND].providers & pair.nova.allocations(server["id"]).keys()
    assert pair.nova.allocations(pair.nova.migration(server)) == {}
    assert not pair.nova.is_defined(SECOND, server)
    pair.check_free(SECOND)


def check_both(pair: MdevCloud, server: dict[str, Any]) -> None:
    """Check that both hosts have leases for a server that moves."""
    found = [each.leases()[server["id"]] for each in pair.nodes.values()]
    assert [len(each) for each in found] == [2, 2]


def why(pair: MdevCloud, server: dict[str, Any]) -> str:
    """Migrate a server, which a check refuses; return what its administrator reads."""
    pair.nova.fail_to_move(server)
    actions = pair.nova.api.get_instance_actions(server["id"])
    request = next(e["request_id"] for e in actions if e["action"] == "live-migration")
    details = pair.nova.api.get_instance_action_details(server["id"], request)
    found = [each.get("details") or "" for each in details["events"]]
    return "\n".join(found) + pair.nova.stdlog.logger.output


# -- the guest moves -----------------------------------------------------------


@pytest.mark.parametrize("specs", [ONE, TWO], ids=["one", "two"])
def test_a_guest_moves_with_its_mediated_devices(pair, specs):
    server = pair.nova.create(specs, host=FIRST)
    number = len(specs) // 2 + 1
    pair.check_attached(server, FIRST, number)
    pair.nova.live_migrate(server)
    check_moved(pair, server, number)
    pair.nova.reboot(server)
    check_moved(pair, server, number)
    pair.nova.delete(server)
    pair.check_free(SECOND)


def test_it_moves_back(pair, server):
    pair.nova.live_migrate(server)
    pair.nova.live_migrate(server)
    pair.check_attached(server, FIRST, 2)
    pair.check_free(SECOND)


@pytest.mark.parametrize("host", [FIRST, SECOND])
def test_a_reconciliation_during_the_move_changes_nothing(pair, server, host):
    with during(pair, lambda: [pair.nova.reconcile(host) for _ in range(3)]):
        pair.nova.live_migrate(server)
    check_moved(pair, server)


def test_the_target_is_restarted_during_the_move(pair, server):
    with during(pair, lambda: pair.nodes[SECOND].restart()):
        pair.nova.live_migrate(server)
    check_moved(pair, server)


@contextlib.contextmanager
def during(pair: MdevCloud, act: Callable[[], object]) -> Iterator[None]:
    """Act while libvirt migrates a guest, in a block."""
    move = libvirt.Domain.migrateToURI3
    acted: list[object] = []

    def migrated(guest: Any, *arguments: Any, **named: Any) -> None:
        acted.append(act())
        move(guest, *arguments, **named)

    with mock.patch.object(libvirt.Domain, "migrateToURI3", migrated):
        yield
    assert len(acted) == 1


# -- it is refused, and nothing is changed -------------------------------------


def test_a_tag_refuses_it(pair, monkeypatch):
    specs = MdevNode.device_spec
    tag = '"live_migratable": "false"}'
    monkeypatch.setattr(
        MdevNode,
        "device_spec",
        lambda node: [each.replace("}", f", {tag}") for each in specs(node)],
    )
    for node in pair.nodes.values():
        node.restart()
    server = pair.nova.create(TWO, host=FIRST)
    assert "is tagged live_migratable = false" in why(pair, server)
    check_stayed(pair, server)


@pytest.mark.parametrize("mdev_nodes", [(0, 0)], ids=["none"], indirect=True)
def test_a_driver_without_migration_refuses_it(pair, server):
    assert "has a driver that cannot migrate it" in why(pair, server)
    check_stayed(pair, server)


def test_an_unasked_device_refuses_it(pair, server):
    state_path = pair.nodes[FIRST].manager.settings.state_path
    for each in Path(state_path, "migrations").iterdir():
        each.unlink()
    assert "os-acc device migration" in why(pair, server)
    check_stayed(pair, server)


def test_one_of_two_devices_refuses_it(pair, server, monkeypatch):
    first, second = pair.nova.mdevs(FIRST, server)
    real = migration._Facts.why_not
    monkeypatch.setattr(
        migration._Facts,
        "why_not",
        lambda facts, lease, subject: (
            "has worn out" if lease.uuid == second else real(facts, lease, subject)
        ),
    )
    text = why(pair, server)
    assert f"{second} has worn out" in text
    assert f"{first} has" not in text
    check_stayed(pair, server)


def test_another_profile_at_the_target_refuses_it(pair, server, monkeypatch):
    monkeypatch.setattr(
        MdevPlugin,
        "migration_profile",
        lambda _plugin, lease: f"framebuffer of {lease.handle.address.type.parent}",
    )
    assert f"framebuffer of {PARENTS[FIRST]}" in why(pair, server)
    check_stayed(pair, server)
    monkeypatch.setattr(MdevPlugin, "accepts_migration", lambda *_: True)
    pair.nova.live_migrate(server)
    check_moved(pair, server)


def test_post_copy_refuses_it(pair, server):
    pair.nova.flags(live_migration_permit_post_copy=True, group="libvirt")
    assert "VFIO has no post-copy" in why(pair, server)
    check_stayed(pair, server)


@pytest.mark.parametrize(
    ("host", "program", "release"),
    [(FIRST, "libvirt", "8.5.9"), (SECOND, "QEMU", "8.0.9")],
)
def test_an_old_host_refuses_it(pair, server, host, program, release):
    with pair.nova.outdated(host, program, release):
        text = why(pair, server)
    assert f"host {host} needs libvirt 8.6.0 and QEMU 8.1.0 or newer" in text
    check_stayed(pair, server)


def test_a_target_with_novas_driver_refuses_it(pair, server):
    name = "check_can_live_migrate_destination"
    novas = getattr(driver.LibvirtDriver, name)
    with mock.patch.object(MigratingDriver, name, novas):
        assert "the target host has no virt driver of os_acc" in why(pair, server)
    check_stayed(pair, server)


# -- it fails, and the server stays as it was ----------------------------------


def test_libvirt_fails_to_migrate(pair, server):
    def refuse(guest: Any, *_: Any, **_named: Any) -> None:
        guest.fail_job()
        raise libvirt.make_libvirtError(
            libvirt.libvirtError, "no", error_code=libvirt.VIR_ERR_INTERNAL_ERROR
        )

    with mock.patch.object(libvirt.Domain, "migrateToURI3", refuse):
        fail(pair, server)
    check_stayed(pair, server)


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_preparation_of_the_target_fails(pair, server, when):
    prepare = MigratingDriver.pre_live_migration

    def refuse(*arguments: Any) -> None:
        if when == "after":
            prepare(*arguments)
        raise nova_exception.NovaException("no")

    with mock.patch.object(MigratingDriver, "pre_live_migration", refuse):
        fail(pair, server)
    check_stayed(pair, server)


@pytest.mark.parametrize("again", [False, True])
def test_the_conductor_fails_after_the_checks(pair, server, again):
    """Nova does not call the driver of the target; a second attempt succeeds."""
    name = "nova.compute.rpcapi.ComputeAPI.live_migration"
    with mock.patch(name, side_effect=nova_exception.NovaException("no")):
        fail(pair, server)
    if not again:
        check_stayed(pair, server, is_told=False)
        return
    # Nova puts the server into ERROR.
    pair.nova.reset_state(server)
    pair.nova.live_migrate(server)
    check_moved(pair, server)


def test_an_unexpected_description_refuses_the_target(pair, server):
    """It may be that of another release: the server stays ACTIVE."""
    name = "os_acc.node.Node.migration_source"
    with mock.patch(name, return_value=[{"address": "x", "reason": ""}]):
        assert "describes no device" in why(pair, server)
    check_stayed(pair, server)


def test_the_target_prepares_a_device_that_a_restart_has_lost(pair, server):
    prepare = MigratingDriver.pre_live_migration

    def after_a_restart(*arguments: Any) -> Any:
        node = pair.nodes[SECOND]
        for each in node.leases()[server["id"]]:
            path = f"{node.bench.root}/sys/bus/mdev/devices/{each.uuid}/remove"
            node.bench.kernel.write(path, "1")
        node.restart()
        return prepare(*arguments)

    with mock.patch.object(MigratingDriver, "pre_live_migration", after_a_restart):
        pair.nova.live_migrate(server)
    check_moved(pair, server)


def test_the_devices_of_the_target_have_gone(pair, server):
    prepare = MigratingDriver.pre_live_migration

    def released(*arguments: Any) -> Any:
        pair.nodes[SECOND].manager.unplug({"uuid": server["id"]})
        return prepare(*arguments)

    with mock.patch.object(MigratingDriver, "pre_live_migration", released):
        fail(pair, server)
    check_stayed(pair, server)


def test_a_server_without_accelerators_moves_to_a_host_that_cannot_serve(pair):
    plain = pair.nova.create({}, host=FIRST)
    with pair.nodes[SECOND].unavailable(exception.HelperUnavailable("no helper")):
        pair.nova.restart_compute_service(SECOND)
        pair.nova.live_migrate(plain)
        assert pair.nova.host_of(plain) == SECOND


def test_the_target_is_restarted_before_it_prepares(pair, server):
    begin = rpcapi.ComputeAPI.live_migration

    def after_a_restart(*arguments: Any, **named: Any) -> Any:
        pair.nova.restart_compute_service(SECOND)
        pair.nova.reconcile(SECOND)
        return begin(*arguments, **named)

    with (
        mock.patch.object(rpcapi.ComputeAPI, "live_migration", after_a_restart),
        # A service that is stopped waits for its greenlets in Nova's tests alone.
        mock.patch("futurist.GreenThreadPoolExecutor.shutdown"),
    ):
        pair.nova.live_migrate(server)
    check_moved(pair, server)


def test_the_abort_of_a_queued_migration(pair, server):
    """Nova runs one migration at a time, and calls no driver for one that waits."""
    other = pair.nova.create(ONE, host=FIRST)
    with stopped(pair, other):
        pair.nova._wait_for_migration_status(other, ["running"])
        pair.nova.begin_live_migration(server)
        pair.nova._wait_for_migration_status(server, ["queued"])
        for host in PARENTS:
            pair.nova.reconcile(host)
        check_both(pair, server)
        pair.nova.api.api_delete(pair.nova.path_of_migration(server))
        pair.nova._wait_for_migration_status(server, ["cancelled"])
        pair.nova._wait_for_server_parameter(server, {"OS-EXT-STS:task_state": None})
        pair.nova.reconcile(SECOND)
        assert server["id"] not in pair.nodes[SECOND].leases()
        pair.check_attached(server, FIRST, 2)


def test_the_source_fails_after_the_guest_has_left(pair, server):
    """Nova then does not call the driver of the source, and leaves an allocation."""
    name = "nova.network.neutron.API.migrate_instance_start"
    with mock.patch(name, side_effect=nova_exception.NovaException("no network")):
        pair.nova.begin_live_migration(server)
        pair.nova._wait_for_migration_status(server, ["error"])
    pair.nova._wait_for_server_parameter(server, {"OS-EXT-STS:task_state": None})
    # Nova's fake of libvirt leaves the guest at its source.
    pair.nova.forget_guests(FIRST)
    pair.nova.reconcile(FIRST)
    pair.check_attached(server, SECOND, 2)
    pair.check_free(FIRST)
    left = pair.nova.allocations(pair.nova.migration(server))
    assert left.keys() >= pair.nodes[FIRST].providers


def test_an_abort(pair, server):
    begun, ended = threading.Event(), threading.Event()

    def wait(guest: Any, *_: Any, **_named: Any) -> None:
        begun.set()
        assert ended.wait(300)
        guest._job_type = libvirt.VIR_DOMAIN_JOB_CANCELLED

    with (
        mock.patch.object(libvirt.Domain, "migrateToURI3", wait),
        mock.patch.object(libvirt.Domain, "abortJob", ended.set),
    ):
        pair.nova.begin_live_migration(server)
        assert begun.wait(300)
        pair.nova._wait_for_migration_status(server, ["running"])
        pair.nova.api.api_delete(pair.nova.path_of_migration(server))
        pair.nova._wait_for_migration_status(server, ["cancelled"])
        pair.nova._wait_for_state_change(server, "ACTIVE")
    check_stayed(pair, server)


@contextlib.contextmanager
def stopped(
    pair: MdevCloud, server: dict[str, Any], *, arrives: bool = False
) -> Iterator[None]:
    """Migrate a server in a block, during which libvirt does not come to an end.

    :param arrives: whether the guest moves at the end of the block; else it fails to.
    """
    begun, ended = threading.Event(), threading.Event()
    move = libvirt.Domain.migrateToURI3

    def wait(guest: Any, *given: Any, **named: Any) -> None:
        begun.set()
        assert ended.wait(300)
        if arrives:
            move(guest, *given, **named)
        else:
            guest.fail_job()

    with (
        mock.patch.object(libvirt.Domain, "migrateToURI3", wait),
        # A service that is stopped waits for its greenlets in Nova's tests alone.
        mock.patch("futurist.GreenThreadPoolExecutor.shutdown"),
    ):
        pair.nova.begin_live_migration(server)
        assert begun.wait(300)
        try:
            yield
        finally:
            ended.set()


def test_nova_compute_of_the_source_ends_during_the_move(pair, server):
    """Nova leaves the allocation of the target, and calls no driver there."""
    held = pair.check_attached(server, FIRST, 2)
    with stopped(pair, server):
        pair.nova.restart_compute_service(FIRST)
        pair.nova._wait_for_server_parameter(server, {"OS-EXT-STS:task_state": None})
        for host in PARENTS:
            pair.nova.reconcile(host)
        assert sorted(pair.nova.mdevs(FIRST, server)) == held
        leases = pair.nodes[FIRST].leases()[server["id"]]
        assert sorted(each.uuid for each in leases) == held
        pair.check_free(SECOND)
        # The migration has the allocation of these units: they are not reserved, too.
        pair.nova.update_inventory()
        (provider,) = pair.nodes[FIRST].providers
        assert pair.nova.reserved(provider) == 0
        pair.nova.reboot(server)
        assert sorted(pair.nova.mdevs(FIRST, server)) == held


def test_a_forced_completion(pair, server):
    with stopped(pair, server, arrives=True):
        pair.nova._wait_for_migration_status(server, ["running"])
        path = f"{pair.nova.path_of_migration(server)}/action"
        pair.nova.api.api_post(path, {"force_complete": None})
        check_both(pair, server)
    pair.nova._wait_for_migration_status(server, ["completed"])
    pair.nova._wait_for_state_change(server, "ACTIVE")
    check_moved(pair, server)


def test_a_reconciliation_waits_for_the_end_of_the_move(pair, server):
    with stopped(pair, server):
        for host in PARENTS:
            pair.nova.reconcile(host)
        check_both(pair, server)
    pair.nova._wait_for_server_parameter(server, {"OS-EXT-STS:task_state": None})
    pair.nova._wait_for_migration_status(server, ["failed", "error"])
    check_stayed(pair, server)


@pytest.mark.parametrize("action", ["suspend", "os-stop", "reboot", "pause"])
def test_other_operations_wait_for_the_end_of_the_move(pair, server, action):
    """Nova rejects them; the devices of both hosts stay."""
    body = {action: {"type": "HARD"} if action == "reboot" else None}
    with stopped(pair, server):
        with pytest.raises(client.OpenStackApiException) as refused:
            pair.nova.api.post_server_action(server["id"], body)
        assert refused.value.response.status_code == 409
        check_both(pair, server)


def test_a_server_deleted_during_the_move_leaves_nothing(pair, server):
    with stopped(pair, server):
        pair.nova.api.delete_server(server["id"])
        pair.nova._wait_until_deleted(server)
    for host in PARENTS:
        pair.nova.reconcile(host)
        pair.check_free(host)


def fail(pair: MdevCloud, server: dict[str, Any]) -> None:
    """Migrate a server, and wait until it is as before."""
    pair.nova.begin_live_migration(server)
    pair.nova._wait_for_migration_status(server, ["failed", "error"])
    pair.nova._wait_for_server_parameter(server, {"OS-EXT-STS:task_state": None})
