# SPDX-License-Identifier: Apache-2.0

"""No step takes an NVMe function from a process that has it open through VFIO."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.helper.client import Helper
from os_acc.objects.lease import LeaseState
from os_acc.privsep.nvme import steps
from os_acc.testing import HostSpec, TestHost, hosts
from tests.functional.host.plugins.nvme_drive import DRIVE, advance
from tests.functional.host.plugins.nvme_drive import lease_of as lease

QEMU = r"held by qemu-system-x86 \(pid 4711\)"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[TestHost]:
    """Yield a host whose drive was on vfio-pci before os_acc started."""
    spec = json.dumps({"address": "*:*:*.*", "prebound": True})
    host = TestHost(
        tmp_path,
        HostSpec((hosts.nvme_disk("0000:d9", 1),)),
        device_spec=[spec],
        write_timeout=2.0,
    )
    host.bind(DRIVE, "vfio-pci")
    with host:
        yield host


def test_an_erasure_waits_for_a_process_that_has_the_drive_open(host):
    host.plug(1, DRIVE)
    host.unplug(1)
    host.kernel.hold(DRIVE)
    before = host.kernel.writes()
    advance(host)
    assert lease(host).state is LeaseState.ERASING
    assert "held by qemu-system-x86 (pid 4711)" in lease(host).reason
    assert host.kernel.writes() == before
    host.kernel.let_go(DRIVE)
    advance(host)
    assert host.manager.store.leases() == ()
    assert host.drivers(DRIVE) == ["vfio-pci"]


@pytest.mark.parametrize("step", [steps.erase, steps.prepare])
def test_a_caller_that_knows_the_lease_takes_no_drive_from_its_guest(host, step):
    host.plug(1, DRIVE)
    host.kernel.hold(DRIVE)
    before = host.kernel.writes()
    with pytest.raises(exception.DeviceInUse, match=QEMU):
        Helper(60.0).run_step(step, lease(host), (("format",),), time.monotonic() + 60)
    assert host.kernel.writes() == before
    assert host.drivers(DRIVE) == ["vfio-pci"]
