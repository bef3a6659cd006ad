# SPDX-License-Identifier: Apache-2.0

"""A resize between two cells of Nova.

Nova then calls other methods of the driver: ``destroy`` and ``cleanup`` on the source,
``spawn`` on the destination.
"""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import pytest

from tests.functional.nova import cloud as clouds
from tests.functional.nova import compute_nodes, libvirt_servers
from tests.functional.nova.cloud import FIRST, SECOND, Cloud

nodes, immediately = compute_nodes.nodes, clouds.immediately
server, specs, number = clouds.server, clouds.specs, clouds.number


@pytest.fixture
def cloud(nodes: dict[str, compute_nodes.ComputeNode]) -> Iterator[Cloud]:
    """Start Nova with one compute node, in the first cell."""
    with clouds.started(libvirt_servers.TwoCells, nodes) as found:
        found.nova.start_compute(FIRST)
        yield found


@pytest.fixture
def pair(cloud: Cloud) -> Cloud:
    """Start a second compute node in the other cell."""
    cloud.nova.start_compute(SECOND, cell_name="cell2")
    return cloud


@pytest.mark.usefixtures("immediately")
@pytest.mark.parametrize("decision", ["confirm", "revert"])
def test_resize_to_another_cell(pair, server, specs, number, decision):
    pair.nova.resize(server, specs)
    migration = pair.nova.migration(server)
    pair.check_held(migration, number, FIRST)
    assert not pair.nova.is_running(FIRST, server)
    pair.check_attached(server, number, SECOND)
    pair.nova.reconcile(FIRST)
    pair.check_held(migration, number, FIRST)
    if decision == "confirm":
        pair.nova.confirm(server)
        pair.check_attached(server, number, SECOND)
        pair.check_free(FIRST)
    else:
        pair.nova.revert(server)
        pair.check_attached(server, number, FIRST)
        pair.check_free(SECOND)
    pair.nova.delete(server)
    pair.check_free(FIRST)
    pair.check_free(SECOND)


def test_delete_while_undecided_between_cells(pair, server, specs, number):
    pair.nova.resize(server, specs)
    pair.check_held(pair.nova.migration(server), number, FIRST)
    pair.nova.delete(server)
    pair.check_free(FIRST)
    pair.check_free(SECOND)


def test_a_failure_in_the_other_cell_leaves_the_server_in_its_own(
    pair, server, specs, number
):
    before = pair.check_held(server["id"], number)
    name = "nova.virt.libvirt.driver.LibvirtDriver._create_guest_with_network"
    with mock.patch(name, side_effect=OSError("no space left")):
        pair.nova.fail_to_resize(server, specs)
        pair.nova.wait_for_end(server, "resize", "conductor_migrate_server")
    pair.check_free(SECOND)
    pair.nova.reboot(server)
    assert pair.check_held(server["id"], number) == before
    pair.check_attached(server, number, FIRST)


def test_a_guest_stays_that_cannot_leave_its_cell(pair, server, specs, number):
    with pair.nodes[FIRST].unavailable():
        pair.nova.restart_compute_service(FIRST)
        pair.nova.fail_to_resize(server, specs)
        pair.nova.wait_for_end(server, "resize", "conductor_migrate_server")
    pair.check_kept(server, number)
    assert len(pair.nova.hostdevs(FIRST, server)) == number
    pair.nova.driver(FIRST)._node._attempt()
    pair.nova.reboot(server)
    pair.check_attached(server, number, FIRST)
    pair.check_free(SECOND)
