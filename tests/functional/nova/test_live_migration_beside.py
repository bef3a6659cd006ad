# SPDX-License-Identifier: Apache-2.0

"""Running guests move between NUMA cells, and with a device of Nova beside."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from nova.tests.fixtures import libvirt

from tests.functional.nova import libvirt_servers, mdev_hosts, scheduled_cloud
from tests.functional.nova.libvirt_servers import MOVES_FUNCTIONS, MOVES_MDEVS
from tests.functional.nova.mdev_hosts import PARENTS, MdevCloud
from tests.functional.nova.test_driver_mdevs import ONE

mdev_nodes, mdev_cloud = mdev_hosts.mdev_nodes, mdev_hosts.mdev_cloud

FIRST, SECOND = PARENTS
NIC = "0000:81:00.0"
#: Nova 31 to 33 claim the cells of the target without the limits of the scheduler.
_IS_LIMITED = int(metadata.version("nova").partition(".")[0]) >= 34
IN_A_CELL = ONE | {"hw:numa_nodes": "1", "accel1:numa_policy": "required"}


@pytest.fixture
def other_cells(tmp_path: Path) -> Iterator[MdevCloud]:
    """Start two nodes, whose GPUs are in the first and in the second cell."""
    with mdev_hosts.nodes_with_gpus(tmp_path, (0, 1)) as nodes:
        services = libvirt_servers.running(scheduled_cloud.ScheduledServers, nodes)
        with services as nova, mdev_hosts.hotplug(nodes):
            cloud = MdevCloud(nova, nodes)
            for host in PARENTS:
                cloud.start(host, **MOVES_MDEVS)
            yield cloud


def cells(cloud: MdevCloud, host: str, server: dict[str, Any]) -> tuple[int, ...]:
    (lease,) = cloud.nodes[host].leases()[server["id"]]
    return lease.guest.cells


def test_a_guest_moves_to_another_cell(other_cells):
    nova = other_cells.nova
    server = nova.create(IN_A_CELL, host=FIRST)
    assert (nova.cells_of(server), cells(other_cells, FIRST, server)) == ([0], (0,))
    if not _IS_LIMITED:
        nova.fail_to_move(server)
        other_cells.check_attached(server, FIRST)
        other_cells.check_free(SECOND)
        return
    nova.live_migrate(server)
    other_cells.check_attached(server, SECOND)
    assert (nova.cells_of(server), cells(other_cells, SECOND, server)) == ([1], (1,))
    other_cells.check_free(FIRST)
    nova.reboot(server)
    other_cells.check_attached(server, SECOND)


@pytest.fixture
def with_nics(mdev_cloud: MdevCloud) -> MdevCloud:
    """Start two nodes, each with a function that Nova may migrate live."""
    ids = {"vendor_id": libvirt.PCI_VEND_ID, "product_id": libvirt.PCI_PROD_ID}
    movable = ids | {"live_migratable": "yes"}
    mdev_cloud.nova.flags(
        device_spec=[json.dumps(movable)],
        alias=[json.dumps(movable | {"name": "nic"})],
        group="pci",
    )
    for host in PARENTS:
        info = libvirt.HostPCIDevicesInfo(num_pci=1, num_pfs=0, num_vfs=0)
        mdev_cloud.start(host, pci_info=info, **MOVES_FUNCTIONS)
    return mdev_cloud


def test_a_device_of_nova_moves_with_the_guest(with_nics):
    nova = with_nics.nova
    server = nova.create(ONE | {"pci_passthrough:alias": "nic:1"}, host=FIRST)
    with_nics.check_held(server["id"], FIRST)
    assert nova.hostdevs(FIRST, server) == [NIC]
    nova.live_migrate(server)
    held = with_nics.check_held(server["id"], SECOND)
    assert (nova.mdevs(SECOND, server), nova.hostdevs(SECOND, server)) == (held, [NIC])
    with_nics.check_free(FIRST)
