# SPDX-License-Identifier: Apache-2.0

"""Two compute nodes of one host, each with a store of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.attach import operator_actions
from os_acc.attach.manager import Manager
from os_acc.objects.pci import PciAddress
from os_acc.testing import HostSpec, TestHost, hosts, uuid_of

DRIVE = PciAddress.parse("0000:41:00.0")


@pytest.fixture
def host(tmp_path: Path) -> Iterator[TestHost]:
    spec = HostSpec((hosts.nvme_disk("0000:41", 1),))
    with TestHost(tmp_path, spec, node_name="node1") as host:
        host.plug(1, str(DRIVE))
        yield host


@pytest.fixture
def other(host: TestHost, tmp_path: Path) -> Manager:
    return host.start(node_name="node2", state_path=str(tmp_path / "node2"))


@pytest.mark.parametrize("is_rebooted", [False, True])
def test_a_release_takes_no_device_of_another_node(host, other, is_rebooted):
    if is_rebooted:
        # The host has the device back already.
        host.kernel.reboot()
    drivers = host.drivers(str(DRIVE))
    with pytest.raises(exception.Conflict, match="leased by compute node node1"):
        operator_actions.release_device(other, DRIVE, None)
    assert host.drivers(str(DRIVE)) == drivers
    assert host.plugged(1) == [str(DRIVE)]


def test_an_adoption_takes_no_device_of_another_node(host, other):
    with pytest.raises(exception.Conflict, match="leased by compute node node1"):
        operator_actions.adopt_device(other, DRIVE, uuid_of(2), None)


def test_a_device_of_a_node_that_exists_no_more_is_taken_by_force(host, other):
    operator_actions.release_device(other, DRIVE, None, force=True)
    assert host.drivers(str(DRIVE)) == ["nvme"]


def test_a_node_releases_its_own_device_after_the_loss_of_its_store(host):
    Path(host.state_path, "os_acc.sqlite").unlink()
    host.restart()
    operator_actions.release_device(host.manager, DRIVE, None)
    assert host.drivers(str(DRIVE)) == ["nvme"]
