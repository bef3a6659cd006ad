# SPDX-License-Identifier: Apache-2.0

"""Servers whose drive was adopted after a loss of the store, as the manual says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from os_acc.attach import operator_actions
from os_acc.objects.pci import PciAddress
from os_acc.testing import HostSpec, hosts
from tests.functional.nova import cloud as clouds
from tests.functional.nova import compute_nodes
from tests.functional.nova.cloud import FIRST, Cloud
from tests.functional.nova.compute_nodes import ComputeNode

cloud, pair, immediately = clouds.cloud, clouds.pair, clouds.immediately

_DRIVES = {
    "compute1": ("0000:41:00.0", "0000:42:00.0"),
    "compute2": ("0000:51:00.0", "0000:52:00.0"),
}
_ONE = {"resources1:CUSTOM_ACCELERATOR_SSD": "1"}


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[dict[str, ComputeNode]]:
    """Yield two nodes, each with two drives that are erased after a guest."""
    slots = [each.rpartition(":")[0] for some in _DRIVES.values() for each in some]
    disks = (hosts.nvme_disk(slot, number) for number, slot in enumerate(slots, 1))
    with compute_nodes.simulated(tmp_path, HostSpec(tuple(disks))) as bench:
        yield {
            name: ComputeNode(name, bench, drives) for name, drives in _DRIVES.items()
        }


@pytest.fixture
def server(pair: Cloud) -> dict[str, Any]:
    """Return a server on the first of two hosts; its drive was adopted."""
    found: dict[str, Any] = pair.nova.create(_ONE, host=FIRST)
    node = pair.nodes[FIRST]
    (lease,) = node.leases()[found["id"]]
    (node.bench.directory / f"state-{FIRST}" / "os_acc.sqlite").unlink()
    node.restart()
    assert isinstance(lease.address, PciAddress)
    operator_actions.adopt_device(node.manager, lease.address, found["id"], None)
    return found


def _fail_to_migrate(pair: Cloud, server: dict[str, Any]) -> None:
    name = "nova.compute.manager.ComputeManager._terminate_volume_connections"
    with mock.patch(name, side_effect=OSError("no answer")):
        pair.nova.fail_to_migrate(server)
    assert pair.nova.allocations(pair.nova.migration(server)) == {}


def _check_not_erased(pair: Cloud) -> None:
    assert not any(e.erasure for e in pair.nodes[FIRST].manager.store.leases())


def test_an_adopted_drive_is_not_reserved(pair, server):
    (drive,) = pair.nova.hostdevs(FIRST, server)
    pair.nova.reconcile(FIRST)
    pair.nova.update_inventory()
    assert pair.nova.reserved(pair.nodes[FIRST].provider(drive)) == 0


@pytest.mark.usefixtures("immediately")
def test_an_adopted_drive_stays_until_its_migration_is_confirmed(pair, server):
    (drive,) = pair.nova.hostdevs(FIRST, server)
    pair.nova.migrate(server)
    pair.nova.reconcile(FIRST)
    _check_not_erased(pair)
    assert pair.nova.migration(server) in pair.nodes[FIRST].leases()
    pair.nova.revert(server)
    assert pair.nova.hostdevs(FIRST, server) == [drive]


def test_an_adopted_drive_returns_after_a_failed_migration(pair, server):
    (drive,) = pair.nova.hostdevs(FIRST, server)
    _fail_to_migrate(pair, server)
    pair.nova.reboot_in_error(server)
    _check_not_erased(pair)
    assert pair.nova.hostdevs(FIRST, server) == [drive]


@pytest.mark.usefixtures("immediately")
def test_an_adopted_drive_whose_provider_is_unknown_is_kept(pair, server):
    """The snapshot of the host shows none while the device is not offered."""
    _fail_to_migrate(pair, server)
    pair.nova.reset_state(server)
    name = "os_acc.inventory.snapshots.Snapshots.provider_of"
    with mock.patch(name, return_value=""):
        pair.nova.reconcile(FIRST)
        # It fails: the provider of the allocation has no other drive.
        pair.nova.api.post_server_action(server["id"], {"reboot": {"type": "HARD"}})
        pair.nova.wait_for_end(server, "reboot", "compute_reboot_instance")
    _check_not_erased(pair)
    assert pair.nova.migration(server) in pair.nodes[FIRST].leases()
