# SPDX-License-Identifier: Apache-2.0

"""Operations that leave the guest of a server and its accelerators as they are.

os_acc has no part in them: they write nothing to the host. The rows are those of
doc/source/admin/nova-server-operations.rst.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from nova import exception as nova_exception
from nova.tests.fixtures import libvirt
from nova.tests.functional.api import client
from nova.virt.libvirt import guest

from tests.functional.nova import cloud as clouds
from tests.functional.nova import compute_nodes
from tests.functional.nova.cloud import FIRST, Cloud

cloud, pair, nodes = clouds.cloud, clouds.pair, compute_nodes.nodes
server, specs, number = clouds.server, clouds.specs, clouds.number
Operation = Callable[[dict[str, Any]], object]
Check = Callable[[Operation], None]


@pytest.fixture
def check(cloud: Cloud, server: dict[str, Any], number: int) -> Check:
    """Return a check that an operation on a server keeps its accelerators."""

    def check(operation: Operation) -> None:
        with cloud.no_privileged_write():
            operation(server)
        cloud.check_attached(server, number)

    return check


def test_lock_and_unlock(cloud, check):
    check(cloud.nova.lock)
    check(cloud.nova.unlock)


def test_set_password(cloud, specs, number):
    image = cloud.nova.image_with(hw_qemu_guest_agent="yes")
    server = cloud.nova.create(specs, host=FIRST, image_uuid=image)
    with (
        mock.patch.object(libvirt.Domain, "setUserPassword") as called,
        cloud.no_privileged_write(),
    ):
        cloud.nova.set_password(server)
    assert called.called
    cloud.check_attached(server, number)


def test_trigger_crash_dump(cloud, check):
    with mock.patch.object(libvirt.Domain, "injectNMI") as called:
        check(cloud.nova.dump)
    assert called.called


def test_snapshot_and_backup(cloud, check):
    check(cloud.nova.snapshot)
    check(cloud.nova.backup)


def test_ports(cloud, check):
    check(cloud.nova.add_port)
    check(cloud.nova.remove_port)


def test_volumes(cloud, check):
    check(cloud.nova.add_volume)
    check(cloud.nova.remove_volume)


def test_name_metadata_and_state(cloud, check):
    check(cloud.nova.rename)
    check(cloud.nova.set_metadata)
    check(cloud.nova.unset_metadata)
    check(cloud.nova.set_state)


def test_console_log(cloud, check):
    check(cloud.nova.read_console)


def test_a_failed_live_migration_is_neither_aborted_nor_completed(pair, server, check):
    """It is the only one that a server with accelerators can have."""
    check(pair.nova.fail_to_move)
    path = pair.nova.path_of_migration(server)

    def refused(call: Callable[[], object]) -> Operation:
        def operation(_server: dict[str, Any]) -> None:
            with pytest.raises(client.OpenStackApiException) as error:
                call()
            assert error.value.response.status_code == 409

        return operation

    api = pair.nova.api
    complete = {"force_complete": None}
    check(refused(lambda: api.api_delete(path)))
    check(refused(lambda: api.api_post(f"{path}/action", complete)))


@clouds.two_groups
def test_a_live_snapshot_asks_for_no_device(cloud, server):
    """It succeeds though os_acc cannot name the devices, as of a quarantined one."""
    name = "os_acc.nova.servers.ServerAccelerators.guest_devices"
    with (
        mock.patch(name, side_effect=nova_exception.InternalError("quarantined")),
        mock.patch.object(guest.Guest, "attach_device") as attach,
        cloud.no_privileged_write(),
    ):
        cloud.nova.snapshot(server)
    assert not attach.called
    assert cloud.nova.is_running(FIRST, server)
