# SPDX-License-Identifier: Apache-2.0

"""Operations that fail half-way, and operations that meet each other."""

from __future__ import annotations

import json
import threading
from typing import Any
from unittest import mock

import oslo_messaging
import pytest
from nova import context, objects
from nova import exception as nova_exception

from os_acc import exception
from os_acc.nova.initialization import DeferredNode
from tests.functional.nova import cloud as clouds
from tests.functional.nova import compute_nodes
from tests.functional.nova.cloud import FIRST, ONE, OTHER_IMAGE, SECOND, TWO
from tests.functional.nova.test_driver_faults import failing

cloud, nodes, pair = clouds.cloud, compute_nodes.nodes, clouds.pair
server, specs, number = clouds.server, clouds.specs, clouds.number
immediately = clouds.immediately

_LIBVIRT = "nova.virt.libvirt."
_POWER_OFF = _LIBVIRT + "driver.LibvirtDriver.migrate_disk_and_power_off"


def instance_of(server: dict[str, Any]) -> Any:
    """Return Nova's object of a server."""
    return objects.Instance.get_by_uuid(context.get_admin_context(), server["id"])


# -- rebuild -------------------------------------------------------------------


@pytest.mark.usefixtures("immediately")
def test_after_a_failed_rebuild_the_server_does_not_start_without_its_accelerator(
    cloud, server, number
):
    """Nova deletes the allocation of a server whose rebuild fails."""
    error = exception.HelperUnavailable("the helper has ended")
    with mock.patch("os_acc.node.Node.plug", side_effect=error):
        cloud.nova.fail_to_rebuild(server, OTHER_IMAGE)
    cloud.nova.reconcile(FIRST)
    assert list(cloud.nodes[FIRST].leases()) == [server["id"]]
    cloud.nova.reboot_in_error(server)
    assert len(cloud.nova.hostdevs(FIRST, server)) == number


def test_after_a_failed_rebuild_the_server_can_be_rebuilt(cloud, server, number):
    held = cloud.check_held(server["id"], number)
    allocated = cloud.nova.allocations(server["id"])
    error = exception.HelperUnavailable("the helper has ended")
    with mock.patch("os_acc.node.Node.plug", side_effect=error):
        cloud.nova.fail_to_rebuild(server, OTHER_IMAGE)
    cloud.nova.wait_for_allocation(server["id"], allocated)
    cloud.nova.rebuild(server, OTHER_IMAGE)
    assert sorted(cloud.nova.hostdevs(FIRST, server)) == held
    cloud.check_attached(server, number)


def test_a_guest_is_not_rebuilt_while_os_acc_cannot_serve(cloud, server, number):
    with cloud.nodes[FIRST].unavailable():
        cloud.nova.restart_compute_service(FIRST)
        cloud.nova.fail_to_rebuild(server, OTHER_IMAGE)
    assert cloud.nova.is_running(FIRST, server)
    assert len(cloud.nova.hostdevs(FIRST, server)) == number
    cloud.nova.driver(FIRST)._node._attempt()
    cloud.nova.rebuild(server, OTHER_IMAGE)
    assert len(cloud.nova.hostdevs(FIRST, server)) == number


def test_a_rebuild_from_the_snapshot_of_another_server_destroys_nothing(
    cloud, server, number
):
    image = cloud.nova.snapshot(cloud.nova.create(ONE))
    allocated = cloud.nova.allocations(server["id"])
    assert len(allocated) == number + 1
    cloud.nova.fail_to_rebuild(server, image)
    # Nova deletes all of it.
    cloud.nova.wait_for_allocation(server["id"], allocated)
    assert cloud.nova.api.get_server(server["id"])["status"] == "ACTIVE"
    cloud.check_attached(server, number)
    cloud.nova.rebuild(server, OTHER_IMAGE)
    cloud.check_attached(server, number)


@clouds.two_groups
def test_a_rebuild_keeps_accelerators_of_a_former_resource_class(cloud, server, number):
    node = cloud.nodes[FIRST]
    held = cloud.check_held(server["id"], number)
    specs = [json.loads(each) for each in node.device_spec()]
    changed = [json.dumps({**each, "resource_class": "CUSTOM_NEW"}) for each in specs]
    with mock.patch.object(node, "device_spec", return_value=changed):
        node.restart()
        cloud.nova.restart_compute_service(FIRST)
        cloud.nova.update_inventory()
        cloud.nova.rebuild(server, OTHER_IMAGE)
    cloud.check_attached(server, number)
    assert sorted(cloud.nova.hostdevs(FIRST, server)) == held


# -- two operations on one server ----------------------------------------------


@clouds.two_groups
def test_a_hard_reboot_beside_a_slow_start_keeps_the_accelerator(cloud, server, number):
    """Nova 34 locks a reboot, and not a start."""
    cloud.nova.stop(server)
    waits, goes_on = threading.Event(), threading.Event()
    name = _LIBVIRT + "driver.LibvirtDriver._get_all_assigned_mediated_devices"

    def slow_once(*_: object) -> dict[str, str]:
        if not waits.is_set():
            waits.set()
            goes_on.wait(60)
        return {}

    with mock.patch(name, side_effect=slow_once):
        cloud.nova.api.post_server_action(server["id"], {"os-start": None})
        assert waits.wait(60)
        cloud.nova.reset_state(server)
        cloud.nova.reboot(server)
        goes_on.set()
        cloud.nova.wait_for_end(server, "start", "compute_start_instance")
    cloud.check_attached(server, number)


# -- resize --------------------------------------------------------------------


@pytest.mark.parametrize("decision", ["confirm", "revert"])
def test_a_resize_on_one_host(cloud, specs, number, decision):
    cloud.nova.flags(allow_resize_to_same_host=True)
    server = cloud.nova.create(specs)
    old = cloud.check_held(server["id"], number)
    cloud.nova.resize(server, specs)
    assert cloud.check_held(cloud.nova.migration(server), number) == old
    cloud.check_attached(server, number)
    getattr(cloud.nova, decision)(server)
    cloud.check_attached(server, number)
    assert list(cloud.nodes[FIRST].leases()) == [server["id"]]
    assert (cloud.check_held(server["id"], number) == old) is (decision == "revert")
    cloud.nova.delete(server)
    cloud.check_free()


@pytest.mark.parametrize("step", ["os_acc.node.Node.plug", _POWER_OFF])
@pytest.mark.parametrize(("before", "after"), [({}, ONE), (ONE, TWO), (TWO, ONE)])
def test_a_server_stays_if_its_resize_on_one_host_fails_early(
    cloud, before, after, step
):
    """New accelerators are attached before the guest ends."""
    cloud.nova.flags(allow_resize_to_same_host=True)
    server = cloud.nova.create(before)
    held = cloud.check_held(
        server["id"], sum(key.startswith("resources") for key in before)
    )
    allocated = cloud.nova.allocations(server["id"])
    error = exception.HelperUnavailable("the helper has ended")
    with mock.patch(step, side_effect=error):
        cloud.nova.begin_resize(server, after)
        cloud.nova.wait_for_end(server, "resize", "compute_resize_instance")
    cloud.nova.wait_for_allocation(server["id"], allocated)
    assert sorted(cloud.nova.hostdevs(FIRST, server)) == held
    if held:
        assert list(cloud.nodes[FIRST].leases()) == [server["id"]]
    else:
        cloud.check_free()
    if step != _POWER_OFF:
        assert cloud.nova.api.get_server(server["id"])["status"] == "ACTIVE"
        assert cloud.nova.is_running(FIRST, server)


@pytest.mark.usefixtures("immediately")
def test_after_a_failed_resize_on_one_host_the_allocation_decides(cloud, specs, number):
    cloud.nova.flags(allow_resize_to_same_host=True)
    server = cloud.nova.create(specs)
    old = cloud.check_held(server["id"], number)
    with failing("finish_migration"):
        cloud.nova.fail_to_resize(server, specs)
    cloud.nova.reboot(server)
    assert set(cloud.check_held(server["id"], number)).isdisjoint(old)
    cloud.check_attached(server, number)


@pytest.mark.usefixtures("immediately")
@pytest.mark.parametrize(("before", "after"), [(ONE, TWO), (TWO, ONE)])
def test_a_hard_reboot_repairs_a_failed_resize_to_other_accelerators(
    pair, before, after
):
    """Nova restores the old flavor, and keeps the allocation of the new one."""
    server = pair.nova.create(before, host=FIRST)
    with failing("finish_migration"):
        pair.nova.fail_to_resize(server, after)
    assert instance_of(server).flavor.extra_specs == before
    pair.nova.reboot_in_error(server)
    number = 2 if after == TWO else 1
    pair.check_attached(server, number, SECOND)
    pair.nova.stop(server)
    pair.nova.start(server)
    pair.check_attached(server, number, SECOND)
    pair.nova.reconcile(FIRST)
    pair.nova.migrate(server)
    pair.nova.confirm(server)
    pair.check_attached(server, 2 if before == TWO else 1)


@pytest.mark.usefixtures("immediately")
@clouds.two_groups
def test_the_definition_on_the_source_does_not_keep_a_lease(pair, server, number):
    """After the disks have moved, Nova leaves a guest that does not run."""
    with failing("finish_migration"):
        pair.nova.fail_to_migrate(server)
    pair.nova.run_guests(FIRST)
    pair.nova.reconcile(FIRST)
    assert pair.nova.migration(server) in pair.nodes[FIRST].leases()
    pair.nova.end_guests(FIRST)
    pair.nova.reconcile(FIRST)
    pair.check_free(FIRST)
    assert len(pair.nova.allocations(server["id"])) == number + 1


def test_a_server_does_not_leave_a_host_that_cannot_keep_its_leases(
    pair, server, number
):
    with pair.nodes[FIRST].unavailable():
        pair.nova.restart_compute_service(FIRST)
        pair.nova.fail_to_leave(server)
    pair.check_attached(server, number)


def test_a_plain_server_moves_although_the_store_cannot_be_read(pair):
    plain = pair.nova.create({}, host=FIRST)
    error = exception.StateUnavailable("the disk has failed")
    with mock.patch("os_acc.node.Node.attached", side_effect=error):
        pair.nova.migrate(plain)
        pair.nova.revert(plain)
    assert pair.nova.is_running(FIRST, plain)


def test_a_plain_server_from_a_snapshot_can_be_resized(pair):
    image = pair.nova.snapshot(pair.nova.create(ONE, host=FIRST))
    plain = pair.nova.create({}, host=FIRST, image_uuid=image)
    pair.nova.resize(plain, ONE)
    pair.check_attached(plain, 1, SECOND)
    # Its own snapshots are its own from now on.
    pair.nova.confirm(plain)
    pair.nova.rebuild(plain, pair.nova.snapshot(plain))
    pair.check_attached(plain, 1, SECOND)


# -- suspend and resume --------------------------------------------------------


def test_a_server_stays_suspended_while_os_acc_cannot_serve(cloud, server, number):
    cloud.nova.suspend(server)
    error = exception.HelperUnavailable("the helper has ended")
    with mock.patch("os_acc.node.Node.plug", side_effect=error):
        cloud.nova.refuse(server, {"resume": None}, "resume")
    assert cloud.nova.api.get_server(server["id"])["status"] == "SUSPENDED"
    cloud.nova.resume(server)
    cloud.check_attached(server, number)


def test_a_suspend_that_fails_leaves_every_accelerator(cloud, server, number):
    name = _LIBVIRT + "guest.Guest.save_memory_state"
    with mock.patch(name, side_effect=OSError("no space left")):
        cloud.nova.refuse(server, {"suspend": None}, "suspend")
    cloud.check_attached(server, number)


def test_a_guest_does_not_resume_without_its_accelerator(cloud, server, number):
    cloud.nova.suspend(server)
    name = _LIBVIRT + "guest.Guest.attach_device"
    with mock.patch(name, side_effect=OSError("no IOMMU group")):
        cloud.nova.refuse(server, {"resume": None}, "resume")
    cloud.check_kept(server, number)


# -- services that do not answer -----------------------------------------------


def test_a_plain_server_starts_without_placement(cloud):
    server = cloud.nova.create({})
    cloud.nova.stop(server)
    with cloud.nova.placement_down():
        cloud.nova.start(server)


def test_a_plain_server_needs_no_store(cloud):
    server = cloud.nova.create({})
    error = exception.StateUnavailable("disk I/O error")
    with (
        cloud.nodes[FIRST].unavailable(error),
        mock.patch("os_acc.recorded", side_effect=error),
    ):
        cloud.nova.restart_compute_service(FIRST)
        cloud.nova.stop(server)
        cloud.nova.start(server)
        cloud.nova.delete(cloud.nova.create({}))


@pytest.mark.usefixtures("immediately")
@clouds.two_groups
def test_a_conductor_that_restarts_does_not_end_the_rounds(cloud, server, number):
    error = oslo_messaging.MessagingTimeout("no reply")
    with mock.patch("nova.objects.Migration.get_by_uuid", side_effect=error) as asked:
        cloud.nova.reconcile(FIRST)
    assert asked.called
    cloud.check_attached(server, number)


@pytest.mark.parametrize(
    ("resource_class", "is_refused"),
    [
        ("CUSTOM_ACCELERATOR_GPU", True),
        ("FPGA", True),
        ("VGPU", False),
        ("NET_BW_EGR_KILOBIT_PER_SEC", False),
        ("MEM_ENCRYPTION_CONTEXT", False),
        ("CUSTOM_PCI_8086_1572", False),
    ],
)
def test_without_a_node_the_units_of_others_are_served(resource_class, is_refused):
    node = DeferredNode(FIRST, mock.Mock(), 1.0)
    allocations = {"provider": {"resources": {"VCPU": 1, resource_class: 1}}}
    assert node.owns_any(allocations) is is_refused


# -- flavors of two services ---------------------------------------------------


@clouds.two_groups
def test_a_flavor_of_cyborg_and_of_os_acc_is_refused(cloud, server, number):
    driver, instance = cloud.nova.driver(FIRST), instance_of(server)
    instance.flavor.extra_specs["accel:device_profile"] = "gpu"
    driver._servers.release(instance)
    with pytest.raises(nova_exception.InternalError, match="device_profile"):
        driver._renew(context.get_admin_context(), instance)
