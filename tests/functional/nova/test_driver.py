# SPDX-License-Identifier: Apache-2.0

"""A server whose flavor requests accelerators keeps them through its whole life.

Each operation is one of ``openstack server``; the rows are those of
doc/source/admin/nova-server-operations.rst. After each, the leases, the journal, the
allocations, the guest's definition and the drivers of the host are compared. An
operation that keeps the accelerators writes nothing to the host.
"""

from unittest import mock

import pytest

from tests.functional.nova import cloud as clouds
from tests.functional.nova import compute_nodes
from tests.functional.nova.cloud import FIRST, ONE, OTHER_IMAGE, SECOND, TWO

cloud, nodes, pair = clouds.cloud, compute_nodes.nodes, clouds.pair
server, specs, number = clouds.server, clouds.specs, clouds.number


# -- on one host ---------------------------------------------------------------


def test_create_and_delete(cloud, server, number):
    cloud.check_attached(server, number)
    cloud.nova.delete(server)
    cloud.check_free()


def test_stop_and_start(cloud, server, number):
    with cloud.no_privileged_write():
        cloud.nova.stop(server)
        cloud.check_kept(server, number)
        cloud.nova.start(server)
    cloud.check_attached(server, number)


@pytest.mark.parametrize("hard", [True, False])
def test_reboot(cloud, server, number, hard):
    with cloud.no_privileged_write():
        cloud.nova.reboot(server, hard=hard)
    cloud.check_attached(server, number)


def test_pause_and_unpause(cloud, server, number):
    with cloud.no_privileged_write():
        cloud.nova.pause(server)
        cloud.check_attached(server, number)
        cloud.nova.unpause(server)
    cloud.check_attached(server, number)


def test_rebuild(cloud, server, number):
    before = cloud.nodes[FIRST].leases()
    with cloud.no_privileged_write():
        cloud.nova.rebuild(server, OTHER_IMAGE)
    cloud.check_attached(server, number)
    after = cloud.nodes[FIRST].leases()
    assert [each.uuid for each in after[server["id"]]] == [
        each.uuid for each in before[server["id"]]
    ]
    cloud.nova.delete(server)
    cloud.check_free()


def test_rescue_and_unrescue(cloud, server, number):
    with cloud.no_privileged_write():
        cloud.nova.rescue(server)
        cloud.check_held(server["id"], number)
        assert cloud.nova.is_running(FIRST, server)
        assert cloud.nova.hostdevs(FIRST, server) == []
        cloud.nova.unrescue(server)
    cloud.check_attached(server, number)


def test_shelve_and_unshelve(cloud, server, number):
    with cloud.no_privileged_write():
        cloud.nova.shelve(server)
        cloud.check_kept(server, number)
        cloud.nova.unshelve(server)
    cloud.check_attached(server, number)


def test_offload_and_unshelve(cloud, server, number):
    cloud.nova.shelve(server)
    cloud.nova.offload(server)
    cloud.check_free()
    cloud.nova.unshelve(server)
    cloud.check_attached(server, number)


def test_soft_delete_and_restore(cloud, server, number):
    with cloud.no_privileged_write():
        cloud.nova.delete_softly(server)
        cloud.check_kept(server, number)
        cloud.nova.restore(server)
    cloud.check_attached(server, number)


def test_soft_delete_and_reclaim(cloud, server, number):
    cloud.nova.delete_softly(server)
    cloud.check_kept(server, number)
    cloud.nova.reclaim(FIRST, server)
    cloud.check_free()


def test_suspend_and_resume(cloud, server, number):
    with cloud.no_privileged_write():
        cloud.nova.suspend(server)
        cloud.check_kept(server, number)
        assert cloud.nova.hostdevs(FIRST, server) == []
        cloud.nova.resume(server)
    cloud.check_attached(server, number)


# -- from host to host ---------------------------------------------------------


def test_migrate_and_confirm(pair, server, number):
    pair.nova.migrate(server)
    pair.check_held(pair.nova.migration(server), number, FIRST)
    pair.check_attached(server, number, SECOND)
    pair.nova.confirm(server)
    pair.check_free(FIRST)
    pair.check_attached(server, number, SECOND)


def test_migrate_and_revert(pair, server, number):
    pair.nova.migrate(server)
    pair.nova.revert(server)
    pair.check_free(SECOND)
    pair.check_attached(server, number, FIRST)


def test_delete_while_undecided(pair, server, number):
    pair.nova.migrate(server)
    pair.nova.delete(server)
    pair.check_free(SECOND)
    pair.check_free(FIRST)


@pytest.mark.parametrize("decision", ["confirm", "revert"])
def test_resize(pair, server, number, decision):
    """The new flavor requests another number of accelerators."""
    other, units = (TWO, 2) if number == 1 else (ONE, 1)
    pair.nova.resize(server, other)
    pair.check_held(pair.nova.migration(server), number, FIRST)
    pair.check_attached(server, units, SECOND)
    if decision == "confirm":
        pair.nova.confirm(server)
        pair.check_attached(server, units, SECOND)
        pair.check_free(FIRST)
    else:
        pair.nova.revert(server)
        pair.check_attached(server, number, FIRST)
        pair.check_free(SECOND)


def test_resize_to_a_flavor_without_accelerators(pair, server, number):
    pair.nova.resize(server, {})
    pair.check_held(pair.nova.migration(server), number, FIRST)
    pair.nova.confirm(server)
    pair.check_free(FIRST)
    pair.check_free(SECOND)


def test_unshelve_elsewhere(pair, server, number):
    pair.nova.shelve(server)
    pair.nova.offload(server)
    pair.nova.stop_host(FIRST)
    pair.nova.unshelve(server)
    pair.check_attached(server, number, SECOND)


def test_evacuate(pair, server, number):
    pair.nova.stop_host(FIRST)
    pair.nova.evacuate(server)
    pair.check_attached(server, number, SECOND)
    pair.check_held(server["id"], number, FIRST)
    pair.nova.start_host(FIRST)
    pair.check_free(FIRST)
    pair.check_attached(server, number, SECOND)


# -- refused -------------------------------------------------------------------


def test_a_running_guest_does_not_move(pair, server, number):
    check = "nova.virt.libvirt.driver.LibvirtDriver.check_can_live_migrate_source"
    with pair.no_privileged_write(), mock.patch(check) as of_nova:
        pair.nova.fail_to_move(server)
    assert not of_nova.called
    pair.check_attached(server, number, FIRST)
    pair.check_free(SECOND)


def test_another_server_does_not_boot_a_snapshot(cloud, server, number):
    image = cloud.nova.snapshot(server)
    other = cloud.nova.create(ONE, state="ERROR", image_uuid=image)
    assert server["id"] in other["fault"]["message"]
    cloud.check_attached(server, number)


def test_a_golden_image_is_booted_if_owner_and_operator_permit_it(
    cloud, server, number
):
    image = cloud.nova.snapshot(server)
    cloud.nova.flags(golden_images=True, group="os_acc_driver")
    cloud.nova.create(ONE, state="ERROR", image_uuid=image)
    cloud.nova.glance.images[image]["properties"]["os_acc_golden"] = "true"
    cloud.nova.flags(golden_images=False, group="os_acc_driver")
    cloud.nova.create(ONE, state="ERROR", image_uuid=image)
    cloud.nova.flags(golden_images=True, group="os_acc_driver")
    other = cloud.nova.create(ONE, image_uuid=image)
    cloud.check_attached(other, 1)
    # A snapshot of the other server is golden once its owner says so.
    again = cloud.nova.snapshot(other)
    cloud.nova.create(ONE, state="ERROR", image_uuid=again)
    cloud.check_attached(server, number)


def test_a_server_is_rebuilt_from_its_own_snapshot(cloud, server, number):
    cloud.nova.rebuild(server, cloud.nova.snapshot(server))
    cloud.check_attached(server, number)
