# SPDX-License-Identifier: Apache-2.0

"""Servers with mediated devices of os_acc, and Nova's own vGPUs beside them.

The UUID of a lease is that of its mediated device and of the ``hostdev`` in the guest's
definition. Nova neither creates a mediated device of os_acc, nor defines one in
libvirt, nor gives one to another server.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
from nova import exception as nova_exception
from nova.tests.fixtures import libvirt

from os_acc import exception
from tests.functional.nova import mdev_hosts
from tests.functional.nova.cloud import OTHER_IMAGE
from tests.functional.nova.mdev_hosts import PARENTS, TYPE, MdevCloud

mdev_nodes, mdev_cloud = mdev_hosts.mdev_nodes, mdev_hosts.mdev_cloud

FIRST, SECOND = PARENTS
MDEV = "resources{}:CUSTOM_ACCELERATOR_MDEV"
ONE = {MDEV.format(1): "1"}
TWO = ONE | {MDEV.format(2): "1", "group_policy": "none"}
_LIBVIRT = "nova.virt.libvirt."
_MANAGER = "nova.compute.manager.ComputeManager."


@pytest.fixture
def cloud(mdev_cloud: MdevCloud) -> Iterator[MdevCloud]:
    """Start Nova with one compute node; it must not create a mediated device."""
    with nova_creates_none():
        mdev_cloud.start(FIRST)
        yield mdev_cloud


@contextlib.contextmanager
def nova_creates_none() -> Iterator[None]:
    """Check that Nova neither creates nor defines a mediated device in a block."""
    names = ("device_create", "device_define", "device_set_autostart")
    with contextlib.ExitStack() as patched:
        calls = [
            patched.enter_context(mock.patch(f"{_LIBVIRT}host.Host.{name}"))
            for name in names
        ]
        yield
    assert [each.call_args_list for each in calls] == [[]] * len(names)


@pytest.fixture
def server(cloud: MdevCloud) -> dict[str, Any]:
    """Return an active server with one mediated device."""
    return cloud.nova.create(ONE, host=FIRST)


# -- the life of a server ------------------------------------------------------


def test_a_server_keeps_its_mediated_devices_on_its_host(cloud):
    server = cloud.nova.create(TWO, host=FIRST)
    held = cloud.check_attached(server, FIRST, 2)
    cloud.nova.reboot(server)
    assert cloud.check_attached(server, FIRST, 2) == held
    cloud.nova.rebuild(server, OTHER_IMAGE)
    assert cloud.check_attached(server, FIRST, 2) == held
    cloud.nova.stop(server)
    assert cloud.check_held(server["id"], FIRST, 2) == held
    cloud.nova.start(server)
    assert cloud.check_attached(server, FIRST, 2) == held
    cloud.nova.restart_compute_service(FIRST)
    cloud.nova.reboot(server, hard=False)
    assert cloud.check_attached(server, FIRST, 2) == held
    cloud.nova.delete(server)
    cloud.check_free(FIRST)


def test_a_rescue_guest_has_none(cloud, server):
    held = cloud.check_attached(server, FIRST)
    cloud.nova.rescue(server)
    assert cloud.nova.mdevs(FIRST, server) == []
    assert cloud.check_held(server["id"], FIRST) == held
    cloud.nova.unrescue(server)
    assert cloud.check_attached(server, FIRST) == held


def test_a_suspended_server_gets_them_back(cloud, server):
    held = cloud.check_attached(server, FIRST)
    cloud.nova.suspend(server)
    assert cloud.nova.mdevs(FIRST, server) == []
    assert cloud.check_held(server["id"], FIRST) == held
    cloud.nova.resume(server)
    assert cloud.check_attached(server, FIRST) == held


def test_a_guest_does_not_resume_without_its_mediated_device(cloud, server):
    cloud.nova.suspend(server)
    missing = libvirt.make_libvirtError(
        libvirt.libvirtError,
        "no such device",
        error_code=libvirt.VIR_ERR_DEVICE_MISSING,
    )
    with mock.patch(_LIBVIRT + "guest.Guest.attach_device", side_effect=missing):
        cloud.nova.refuse(server, {"resume": None}, "resume")
    assert not cloud.nova.is_running(FIRST, server)
    cloud.check_held(server["id"], FIRST)


def test_a_failed_suspension_leaves_them_attached(cloud, server):
    held = cloud.check_attached(server, FIRST)
    name = _LIBVIRT + "guest.Guest.save_memory_state"
    with mock.patch(name, side_effect=OSError("no space left")):
        cloud.nova.refuse(server, {"suspend": None}, "suspend")
    assert cloud.nova.mdevs(FIRST, server) == held


def test_a_server_moves_with_them(cloud, server):
    held = cloud.check_attached(server, FIRST)
    cloud.start(SECOND)
    cloud.nova.resize(server, TWO)
    assert cloud.check_held(cloud.nova.migration(server), FIRST) == held
    cloud.check_attached(server, SECOND, 2)
    cloud.nova.revert(server)
    assert cloud.check_attached(server, FIRST) == held
    cloud.check_free(SECOND)
    cloud.nova.migrate(server)
    cloud.nova.confirm(server)
    cloud.check_free(FIRST)
    cloud.check_attached(server, SECOND)


def test_the_guest_of_a_lost_lease_is_defined_with_the_new_one(cloud, server):
    (lost,) = cloud.check_attached(server, FIRST)
    cloud.nova.stop(server)
    cloud.nodes[FIRST].manager.unplug({"uuid": server["id"]})
    assert lost not in cloud.nodes[FIRST].mdevs()
    cloud.nova.start(server)
    (found,) = cloud.check_attached(server, FIRST)
    assert found != lost


def test_cyborg_13_an_evacuation_needs_nothing_of_the_dead_host(cloud, server):
    """Cyborg called the dead host to remove its mediated device (facts 5, no. 13)."""
    left = cloud.check_attached(server, FIRST)
    cloud.start(SECOND)
    cloud.nova.stop_host(FIRST)
    cloud.nova.evacuate(server)
    assert cloud.check_attached(server, SECOND) != left
    assert sorted(cloud.nodes[FIRST].mdevs()) == left
    # When the host is back, Nova destroys its guest there.
    cloud.nova.start_host(FIRST)
    cloud.check_free(FIRST)
    cloud.check_attached(server, SECOND)


def test_cyborg_34_after_a_reboot_of_the_host_only_os_acc_creates_it(cloud, server):
    """Nova defined in libvirt what Cyborg had created (facts 5, no. 34).

    It was never undefined, and came back at each boot.
    """
    held = cloud.check_attached(server, FIRST)
    cloud.nodes[FIRST].bench.kernel.reboot()
    assert cloud.nodes[FIRST].mdevs() == {}
    cloud.nova.flags(resume_guests_state_on_host_boot=True)
    cloud.nova.reboot_host(FIRST)
    # With the same UUID, before libvirt starts the guest.
    assert cloud.check_attached(server, FIRST) == held
    cloud.nova.delete(server)
    cloud.check_free(FIRST)


# -- vGPUs of Nova -------------------------------------------------------------


def test_nova_gives_no_leased_mediated_device_to_another_server(cloud, server):
    """A mediated device that no guest has is free for Nova."""
    held = cloud.check_attached(server, FIRST)
    free = str(uuid.uuid4())
    cloud.nodes[FIRST].create(free)
    virt = cloud.nova.driver(FIRST)
    # As if the option named the type, and the guest were not defined yet.
    virt.supported_vgpu_types, virt.pgpu_type_default = [TYPE], TYPE
    cloud.nova.forget_guests(FIRST)
    assert {each["uuid"] for each in virt._get_mediated_devices()} == {free, *held}
    assert virt._get_existing_mdevs_not_assigned(None, [TYPE]) == {free}


def test_without_the_store_nova_gives_away_no_mediated_device(cloud):
    virt = cloud.nova.driver(FIRST)
    lost = exception.StateUnavailable("the disk is gone")
    with (
        mock.patch.object(virt._node, "attached", side_effect=lost),
        pytest.raises(nova_exception.InternalError, match="the disk is gone"),
    ):
        virt._get_existing_mdevs_not_assigned(None)


def test_nova_compute_ends_if_nova_also_names_a_leased_mediated_device(cloud, server):
    cloud.check_attached(server, FIRST)
    cloud.nova.flags(enabled_mdev_types=[TYPE], group="devices")
    with pytest.raises(exception.InvalidConfiguration, match=f"{TYPE}.*leased"):
        cloud.nova.restart_compute_service(FIRST)


@pytest.mark.parametrize(
    ("before", "after", "step"),
    [
        (ONE, TWO, _MANAGER + "_terminate_volume_connections"),
        (TWO, ONE, _MANAGER + "_terminate_volume_connections"),
        (ONE, ONE, _MANAGER + "_terminate_volume_connections"),
        ({}, ONE, _MANAGER + "_terminate_volume_connections"),
        (ONE, TWO, _MANAGER + "_update_volume_attachments"),
        (ONE, TWO, _LIBVIRT + "driver.LibvirtDriver.finish_migration"),
    ],
)
def test_after_a_late_failure_of_a_resize_on_one_host_the_allocation_decides(
    cloud, before, after, step
):
    """Nova calls no driver, and both consumers have leases of one provider."""
    cloud.nova.flags(allow_resize_to_same_host=True)
    cloud.nova.flags(reconcile_age=0.0, group="os_acc_driver")
    server = cloud.nova.create(before, host=FIRST)
    old = sorted(cloud.nova.mdevs(FIRST, server))
    with mock.patch(step, side_effect=OSError("no space left")):
        cloud.nova.fail_to_resize(server, after)
    cloud.nova.reboot_in_error(server)
    for _ in range(2):
        cloud.nova.reconcile(FIRST)
    allocated = sum(
        each.get("CUSTOM_ACCELERATOR_MDEV", 0)
        for each in cloud.nova.allocations(server["id"]).values()
    )
    leases = cloud.nodes[FIRST].leases()
    assert leases.keys() <= {server["id"]}
    held = sorted(each.uuid for each in leases.get(server["id"], ()))
    assert len(held) == allocated
    assert sorted(cloud.nova.mdevs(FIRST, server)) == held
    if allocated == len(old):
        # Its data is there.
        assert held == old
    cloud.nova.delete(server)
    assert cloud.nodes[FIRST].leases() == {}


@pytest.mark.parametrize(
    ("step", "start"),
    [
        (_LIBVIRT + "driver.LibvirtDriver.confirm_migration", "reboot"),
        ("nova.network.neutron.API.setup_networks_on_host", "reboot"),
        ("nova.network.neutron.API.setup_networks_on_host", "rescue"),
        ("os_acc.node.Node.unplug", "reboot"),
    ],
)
def test_after_a_failed_confirmation_on_one_host_the_guest_keeps_its_devices(
    cloud, server, step, start
):
    """Nova deletes the migration's allocation; both have leases of one provider."""
    (new,) = fail_to_confirm(cloud, server, step)
    # The device is in use by the guest.
    cloud.nodes[FIRST].bench.kernel.hold(new)
    if start == "rescue":
        cloud.nova.rescue(server)
        cloud.nova.unrescue(server)
    else:
        cloud.nova.reboot(server)
    assert cloud.check_attached(server, FIRST) == [new]
    assert list(cloud.nodes[FIRST].leases()) == [server["id"]]


def test_a_unit_of_a_failed_confirmation_on_one_host_is_not_offered(cloud, server):
    cloud.nova.flags(reconcile_age=0.0, group="os_acc_driver")
    fail_to_confirm(cloud, server, "nova.network.neutron.API.setup_networks_on_host")
    cloud.nova.reconcile(FIRST)
    cloud.nova.update_inventory()
    (provider,) = cloud.nodes[FIRST].providers
    assert cloud.nova.reserved(provider) == 1
    cloud.nova.reboot(server)
    cloud.nova.reconcile(FIRST)
    cloud.nova.update_inventory()
    assert cloud.nova.reserved(provider) == 0


def fail_to_confirm(cloud: MdevCloud, server: dict[str, Any], step: str) -> list[str]:
    """Let a step of the confirmation of a resize fail; return the guest's devices."""
    cloud.nova.flags(allow_resize_to_same_host=True)
    cloud.nova.resize(server, ONE)
    devices: list[str] = cloud.check_attached(server, FIRST)
    with mock.patch(step, side_effect=exception.HelperUnavailable("no answer")):
        cloud.nova.api.post_server_action(server["id"], {"confirmResize": None})
        cloud.nova.wait_for_end(server, "confirmResize", "compute_confirm_resize")
    assert cloud.nova.allocations(cloud.nova.migration(server)) == {}
    cloud.nova.reset_state(server)
    return devices


def test_a_guest_of_a_failed_resize_on_one_host_that_runs_keeps_all_leases(
    cloud, server
):
    """It starts with the devices that have its data when it has been stopped."""
    old = cloud.check_attached(server, FIRST)
    cloud.nova.flags(allow_resize_to_same_host=True)
    name = _LIBVIRT + "driver.LibvirtDriver._wait_for_running"
    with mock.patch(name, side_effect=OSError("no answer")):
        cloud.nova.fail_to_resize(server, ONE)
    (new,) = cloud.nova.mdevs(FIRST, server)
    cloud.nova.reset_state(server)
    hard = {"reboot": {"type": "HARD"}}
    cloud.nova.api.post_server_action(server["id"], hard)
    cloud.nova.wait_for_end(server, "reboot", "compute_reboot_instance")
    found = cloud.nodes[FIRST].leases()
    assert [(each.uuid, each.state.value) for each in found[server["id"]]] == [
        (new, "held")
    ]
    cloud.nova.reset_state(server)
    cloud.nova.stop(server)
    cloud.nova.start(server)
    assert cloud.check_attached(server, FIRST) == old != [new]
    assert list(cloud.nodes[FIRST].leases()) == [server["id"]]


def test_an_unrescued_guest_has_no_unit_that_was_given_back(cloud):
    server = cloud.nova.create(TWO, host=FIRST)
    cloud.nova.flags(allow_resize_to_same_host=True)
    with mock.patch(
        "nova.virt.libvirt.driver.LibvirtDriver.finish_migration",
        side_effect=OSError("no space"),
    ):
        cloud.nova.fail_to_resize(server, ONE)
    cloud.nova.rescue(server)
    cloud.nova.unrescue(server)
    cloud.check_attached(server, FIRST, 1)


# -- after failed moves, the devices with the data stay ---------------------------


@pytest.fixture
def on_one_host(cloud: MdevCloud) -> MdevCloud:
    cloud.nova.flags(allow_resize_to_same_host=True)
    return cloud


@pytest.mark.parametrize("start", ["rescue", "reboot"])
def test_a_guest_that_a_failed_resize_has_left_running_keeps_its_devices(
    on_one_host, server, start
):
    nova = on_one_host.nova
    name = f"{_MANAGER}_complete_volume_attachments"
    with mock.patch(name, side_effect=OSError("no answer of cinder")):
        nova.fail_to_resize(server, ONE)
    new = nova.mdevs(FIRST, server)
    nova.reset_state(server)
    nova.reboot(server, hard=False)
    if start == "rescue":
        nova.rescue(server)
        nova.unrescue(server)
    else:
        nova.reboot(server)
    assert nova.mdevs(FIRST, server) == new


def test_a_rebuild_keeps_the_devices_of_a_failed_resize(on_one_host, server):
    nova, old = on_one_host.nova, on_one_host.check_attached(server, FIRST)
    name = f"{_LIBVIRT}driver.LibvirtDriver.finish_migration"
    with mock.patch(name, side_effect=OSError("no space left")):
        nova.fail_to_resize(server, ONE)
    nova.rebuild(server, OTHER_IMAGE)
    assert nova.mdevs(FIRST, server) == old
    nova.stop(server)
    nova.start(server)
    assert nova.mdevs(FIRST, server) == old


def test_a_rebuild_keeps_the_devices_of_a_failed_migration(cloud, server):
    cloud.start(SECOND)
    old = cloud.check_attached(server, FIRST)
    name = f"{_MANAGER}_terminate_volume_connections"
    with mock.patch(name, side_effect=OSError("no answer")):
        cloud.nova.fail_to_migrate(server)
    cloud.nova.rebuild(server, OTHER_IMAGE)
    cloud.nova.reboot(server)
    assert cloud.nova.mdevs(FIRST, server) == old


@pytest.mark.parametrize(
    ("step", "error", "event"),
    [
        (
            f"{_MANAGER}_revert_allocation",
            nova_exception.AllocationMoveFailed("409"),
            "compute_finish_revert_resize",
        ),
        (
            "nova.compute.rpcapi.ComputeAPI.finish_revert_resize",
            OSError("no queue"),
            "compute_revert_resize",
        ),
    ],
    ids=["allocation", "rpc"],
)
def test_a_revert_that_fails_after_the_guest_has_ended_can_be_repaired(
    on_one_host, server, step, error, event
):
    nova, old = on_one_host.nova, on_one_host.check_attached(server, FIRST)
    nova.resize(server, ONE)
    with mock.patch(step, side_effect=error):
        nova.api.post_server_action(server["id"], {"revertResize": None})
        nova.wait_for_end(server, "revertResize", event)
    nova.reset_state(server)
    nova.reboot(server)
    assert nova.mdevs(FIRST, server) == old
    # Nova says that the migration has leaked it.
    nova.deallocate(nova.migration(server))
    nova.reboot(server)
    assert nova.mdevs(FIRST, server) == old


def test_a_unit_of_a_failed_resize_is_reserved_beside_an_undecided_one(
    on_one_host, server
):
    nova, (provider,) = on_one_host.nova, on_one_host.nodes[FIRST].providers
    nova.flags(reconcile_age=0.0, group="os_acc_driver")
    name = f"{_MANAGER}_complete_volume_attachments"
    with mock.patch(name, side_effect=OSError("no answer of cinder")):
        nova.fail_to_resize(server, ONE)
    nova.reset_state(server)
    nova.resize(server, ONE)
    nova.reconcile(FIRST)
    nova.update_inventory()
    assert nova.reserved(provider) == 1
