# SPDX-License-Identifier: Apache-2.0

"""No server starts without its accelerators, and no accelerator is lost.

Each test lets one step of Nova, of the host or of os_acc fail.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from nova import context, objects
from nova.conf import CONF

from os_acc import exception
from os_acc.nova.guest_devices import GuestDevices
from os_acc.objects.lease import LeaseState
from os_acc.scheduling.accel_keys import DEVICE_PROFILE
from os_acc.testing import instance, request, uuid_of
from tests.functional.nova import cloud as clouds
from tests.functional.nova import compute_nodes
from tests.functional.nova.cloud import FIRST, ONE, SECOND

cloud, nodes, pair = clouds.cloud, compute_nodes.nodes, clouds.pair
server, specs, number = clouds.server, clouds.specs, clouds.number
immediately = clouds.immediately

_DRIVER = "nova.virt.libvirt.driver.LibvirtDriver."


@contextlib.contextmanager
def failing(method: str) -> Iterator[mock.Mock]:
    """Let a method of Nova's libvirt driver fail."""
    with mock.patch(_DRIVER + method, side_effect=OSError("no space left")) as failed:
        yield failed


# -- a guest that is rescued after a failure ------------------------------------


@clouds.two_groups
def test_after_a_failed_migration_an_unrescued_guest_has_its_accelerators(
    pair, server, number
):
    with failing("finish_migration"):
        pair.nova.fail_to_migrate(server)
    pair.nova.rescue(server)
    pair.nova.unrescue(server)
    pair.check_attached(server, number, SECOND)


@clouds.two_groups
def test_an_unrescued_guest_has_no_accelerator_that_was_given_back(cloud, server):
    cloud.nova.flags(allow_resize_to_same_host=True)
    with failing("finish_migration"):
        cloud.nova.fail_to_resize(server, ONE)
    cloud.nova.rescue(server)
    cloud.nova.unrescue(server)
    cloud.check_attached(server, 1)


def test_an_unrescued_guest_keeps_the_devices_of_cyborg(cloud):
    """They are not in the guest that rescues."""
    server = cloud.nova.create({})
    cloud.nova.rescue(server)
    # Nova asks Cyborg for the devices only when it creates a server.
    instance = objects.Instance.get_by_uuid(context.get_admin_context(), server["id"])
    instance.flavor.extra_specs = {DEVICE_PROFILE: "fpga"}
    instance.save()
    saved = Path(CONF.instances_path, server["id"], "unrescue.xml")
    device = GuestDevices(frozenset({"0000:81:00.0"})).functions()[0].to_xml()
    saved.write_text(saved.read_text().replace("</devices>", f"{device}</devices>"))
    cloud.nova.unrescue(server)
    assert "0000:81:00.0" in cloud.nova.hostdevs(FIRST, server)


# -- a guest that is not created -----------------------------------------------


def test_a_guest_that_cannot_be_defined_leaves_nothing(cloud, specs):
    with failing("_create_guest_with_network") as failed:
        cloud.nova.create(specs, state="ERROR")
    assert failed.called
    cloud.check_free()


def test_the_second_host_serves_if_the_first_fails(pair, specs, number):
    node = pair.nodes[FIRST]
    for gpu in node.gpus:
        node.bench.kernel.fail(gpu, "drivers_probe")
    server = pair.nova.create(specs, host=None)
    assert pair.nova.host_of(server) == SECOND
    pair.check_attached(server, number, SECOND)


@clouds.two_groups
def test_a_request_that_no_host_serves_is_not_rescheduled(pair, specs):
    server = pair.nova.create(
        specs | {"accel9:bitstream_id": "11111111-2222-4333-8444-555555555555"},
        state="ERROR",
    )
    assert "group '9'" in server["fault"]["message"]
    pair.check_free(FIRST)
    pair.check_free(SECOND)


def test_the_last_accelerators_go_to_one_of_three_servers(cloud, specs, number):
    node = cloud.nodes[FIRST]
    for _ in range(len(node.gpus) - number):
        cloud.nova.create(ONE)
    made = [cloud.nova.begin(specs) for _ in range(3)]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        states = list(pool.map(cloud.nova.settled, made))
    assert sorted(states) == ["ACTIVE", "ERROR", "ERROR"]
    cloud.check_attached(made[states.index("ACTIVE")], number)
    assert sum(map(len, node.leases().values())) == len(node.gpus)


# -- a guest that does not start again -----------------------------------------


def test_a_device_that_cannot_be_prepared_keeps_the_server_down(cloud, server, number):
    cloud.nova.stop(server)
    bench = cloud.nodes[FIRST].bench
    gpus = cloud.check_held(server["id"], number)
    bench.kernel.reboot()
    cloud.nodes[FIRST].restart()
    bench.kernel.fail(gpus[-1], "drivers_probe")
    cloud.nova.fail_to_start(server)
    bench.kernel.lift()
    cloud.nova.start(server)
    cloud.check_attached(server, number)


def test_after_a_reboot_of_the_host_its_servers_start(cloud, server, number):
    cloud.nova.flags(resume_guests_state_on_host_boot=True)
    cloud.nodes[FIRST].bench.kernel.reboot()
    cloud.nodes[FIRST].restart()
    cloud.nova.reboot_host(FIRST)
    cloud.check_attached(server, number)


# -- changes of Nova that the driver does not see ------------------------------


@pytest.mark.usefixtures("immediately")
def test_a_server_deleted_while_its_host_is_down_is_released_at_the_start(
    cloud, server, number
):
    cloud.nova.stop_host(FIRST)
    cloud.nova.delete(server)
    cloud.nova.forget_guests(FIRST)
    assert cloud.nodes[FIRST].leases()
    cloud.nova.start_host(FIRST)
    cloud.nodes[FIRST].wait_for_lease(server["id"], has_one=False)
    cloud.check_free()


@pytest.mark.usefixtures("immediately")
def test_the_source_releases_after_a_failure_on_the_destination(pair, server, number):
    with failing("finish_migration"):
        pair.nova.fail_to_migrate(server)
    assert pair.nova.migration(server) in pair.nodes[FIRST].leases()
    # Nova leaves the server, and its allocation, on the destination.
    pair.check_free(SECOND, allocated_to=[server["id"]])
    pair.nova.forget_guests(FIRST)
    pair.nova.reconcile(FIRST)
    pair.check_free(FIRST)
    pair.nova.reboot(server)
    pair.check_attached(server, number, SECOND)


@pytest.mark.usefixtures("immediately")
@clouds.two_groups
def test_a_stopped_server_keeps_its_lease(cloud, server, number):
    cloud.nova.stop(server)
    cloud.nova.forget_guests(FIRST)
    cloud.nova.reconcile(FIRST)
    cloud.check_kept(server, number)


@pytest.mark.usefixtures("immediately")
@clouds.two_groups
def test_without_an_answer_of_placement_every_lease_stays(cloud, server, number):
    cloud.nova.stop_host(FIRST)
    cloud.nova.delete(server)
    cloud.nova.forget_guests(FIRST)
    with cloud.nova.placement_down():
        cloud.nova.reconcile(FIRST)
    assert server["id"] in cloud.nodes[FIRST].leases()


# -- a release that fails ------------------------------------------------------


@pytest.mark.usefixtures("immediately")
def test_a_failed_release_does_not_stop_the_deletion(cloud, server, number):
    gpu, *_ = cloud.check_held(server["id"], number)
    cloud.nodes[FIRST].bench.kernel.hold(gpu)
    cloud.nova.delete(server)
    assert list(cloud.nodes[FIRST].leases()) == [server["id"]]
    cloud.nodes[FIRST].bench.kernel.let_go(gpu)
    cloud.nova.forget_guests(FIRST)
    cloud.nova.reconcile(FIRST)
    cloud.check_free()


@clouds.two_groups
def test_a_guest_starts_beside_a_device_that_was_replaced(cloud, server, number):
    node = cloud.nodes[FIRST]
    held = cloud.check_held(server["id"], number)
    free = next(gpu for gpu in node.gpus if gpu not in held)
    (provider,) = (
        each
        for each in node.manager.providers()
        if free in [str(handle.address) for handle in each.device.handles]
    )
    node.manager.plug(instance(7), *request(provider))
    (other,) = node.leases()[uuid_of(7)]
    node.bench.kernel.hold(free)
    spare = dataclasses.replace(
        other, consumer=server["id"], state=LeaseState.RELEASING, is_spare=True
    )
    node.manager.store.replace([spare])
    cloud.nova.reboot(server)
    assert cloud.nova.is_running(FIRST, server)
    assert sorted(cloud.nova.hostdevs(FIRST, server)) == held
    node.bench.kernel.let_go(free)


# -- os_acc cannot serve -------------------------------------------------------


def test_without_the_helper_compute_refuses_accelerators_alone(
    nodes, cloud, server, number
):
    with nodes[FIRST].unavailable():
        cloud.nova.restart_compute_service(FIRST)
        cloud.nova.update_inventory()
        refused = cloud.nova.create(ONE, state="ERROR")
        assert "No valid host" in refused["fault"]["message"]
        other = cloud.nova.create({})
        assert cloud.nova.hostdevs(FIRST, other) == []
        cloud.nova.stop(server)
        cloud.nova.fail_to_start(server)
        cloud.check_kept(server, number)
    cloud.nova.driver(FIRST)._node._attempt()
    cloud.nova.update_inventory()
    cloud.nova.start(server)
    cloud.check_attached(server, number)
    cloud.check_attached(cloud.nova.create(ONE), 1)


def test_an_invalid_option_ends_compute(nodes, cloud):
    error = exception.InvalidConfiguration("device_spec is no JSON")
    with nodes[FIRST].unavailable(error), pytest.raises(type(error)):
        cloud.nova.restart_compute_service(FIRST)


# -- nova-compute ends in the middle ------------------------------------------------


_RELEASE = "os_acc.nova.servers.ServerAccelerators.release"
_BUILD = "compute__do_build_and_run_instance"


class Killed(BaseException):
    """nova-compute ends here: no handler of Nova runs to its end."""


@pytest.mark.usefixtures("immediately")
def test_a_build_that_a_restart_interrupts_leaves_nothing(cloud, specs):
    """Nova sets a server that was being built to ERROR when it starts."""
    with (
        mock.patch(_DRIVER + "_create_guest_with_network", side_effect=Killed),
        mock.patch(_RELEASE),
    ):
        server = cloud.nova.begin(specs)
        cloud.nodes[FIRST].wait_for_lease(server["id"])
        cloud.nova.wait_for_end(server, "create", _BUILD)
    assert server["id"] in cloud.nodes[FIRST].leases()
    cloud.nova.restart_compute_service(FIRST)
    cloud.nova.delete(server)
    # Here the server has no host: Nova's claim ends even so.
    cloud.nova.reconcile(FIRST)
    cloud.check_free()


def test_a_resize_that_a_restart_of_the_destination_interrupts_can_be_repaired(
    pair, server, number
):
    """Nova leaves the server, and both allocations, as they were."""
    with (
        mock.patch(_DRIVER + "_create_guest_with_network", side_effect=Killed),
        mock.patch(_RELEASE),
    ):
        pair.nova.begin_migration(server)
        pair.nodes[SECOND].wait_for_lease(server["id"])
        pair.nova.wait_for_end(server, "migrate", "compute_finish_resize")
    pair.nova.restart_compute_service(SECOND)
    pair.check_held(pair.nova.migration(server), number, FIRST)
    pair.nova.reboot_in_error(server)
    pair.check_attached(server, number, SECOND)


@pytest.mark.usefixtures("immediately")
def test_a_resize_that_a_restart_interrupts_is_rolled_back(pair, server, number):
    """Nova does so when it starts on the source. The migration keeps the allocation."""
    name = "nova.compute.manager.ComputeManager._terminate_volume_connections"
    with mock.patch(name, side_effect=Killed):
        pair.nova.begin_migration(server)
        pair.nova.wait_for_end(server, "migrate", "compute_resize_instance")
    migration = pair.nova.migration(server)
    gpus = pair.check_held(migration, number)
    pair.nova.interrupt(server)
    pair.nova.restart_compute_service(FIRST)
    assert list(pair.nodes[FIRST].leases()) == [server["id"]]
    assert sorted(pair.nova.hostdevs(FIRST, server)) == gpus
    assert {pair.nodes[FIRST].provider(gpu) for gpu in gpus} <= set(
        pair.nova.allocations(migration)
    )
    pair.nova.reconcile(FIRST)
    assert list(pair.nodes[FIRST].leases()) == [server["id"]]


@pytest.mark.usefixtures("immediately")
def test_a_resize_that_a_restart_without_the_helper_interrupts_can_be_repaired(
    pair, server, number
):
    """Nova rolls it back when it starts, and does not repeat that."""
    name = "nova.compute.manager.ComputeManager._terminate_volume_connections"
    with mock.patch(name, side_effect=Killed):
        pair.nova.begin_migration(server)
        pair.nova.wait_for_end(server, "migrate", "compute_resize_instance")
    gpus = pair.check_held(pair.nova.migration(server), number)
    pair.nova.interrupt(server)
    with pair.nodes[FIRST].unavailable():
        pair.nova.restart_compute_service(FIRST)
    assert pair.nova.driver(FIRST)._node._attempt()
    pair.nova.reconcile(FIRST)
    pair.nova.reboot_in_error(server)
    assert list(pair.nodes[FIRST].leases()) == [server["id"]]
    assert sorted(pair.nova.hostdevs(FIRST, server)) == gpus


@pytest.mark.usefixtures("immediately")
def test_a_resize_on_one_host_that_a_restart_interrupts_is_rolled_back(
    cloud, specs, number
):
    """The new accelerators are there already."""
    cloud.nova.flags(allow_resize_to_same_host=True)
    server = cloud.nova.create(specs)
    gpus = cloud.check_held(server["id"], number)
    name = "nova.compute.manager.ComputeManager._terminate_volume_connections"
    with mock.patch(name, side_effect=Killed):
        cloud.nova.begin_resize(server, specs)
        cloud.nova.wait_for_end(server, "resize", "compute_resize_instance")
    assert cloud.check_held(cloud.nova.migration(server), number) == gpus
    assert len(cloud.check_held(server["id"], number)) == number
    cloud.nova.interrupt(server)
    cloud.nova.restart_compute_service(FIRST)
    assert list(cloud.nodes[FIRST].leases()) == [server["id"]]
    assert sorted(cloud.nova.hostdevs(FIRST, server)) == gpus
