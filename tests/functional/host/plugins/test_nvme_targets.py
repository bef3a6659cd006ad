# SPDX-License-Identifier: Apache-2.0

"""A drive for the host, or for no guest, follows the rules of one for a guest."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.objects.lease import LeaseState
from os_acc.privsep import claims
from os_acc.privsep.nvme.disks import MARKS
from os_acc.testing import TestHost, instance
from os_acc.testing.device_specs import NvmeSpec
from tests.functional.host.operator_commands import release
from tests.functional.host.plugins.nvme_drive import DATA, DRIVE, advance, host_with

TARGETS = pytest.mark.parametrize("target", ["VM", "host", "none"])


@pytest.fixture
def host(tmp_path: Path) -> Iterator[TestHost]:
    with host_with(tmp_path, NvmeSpec(serial="A")) as host:
        yield host


@TARGETS
def test_a_drive_that_cannot_be_erased_is_refused(tmp_path, target):
    with host_with(tmp_path, NvmeSpec(oacs=0)) as host:
        before = host.kernel.snapshot()
        with pytest.raises(exception.HostStepFailed, match="cannot be erased"):
            host.plug(1, DRIVE, attach_target=target)
        assert host.kernel.snapshot() == before
        assert not os.path.exists(host.kernel.path(MARKS, DRIVE))
        assert (host.manager.store.leases(), claims.claimed()) == ((), ())


@TARGETS
def test_a_drive_that_the_host_uses_is_refused(host, target):
    number = host.kernel.read(host.kernel.path("sys/class/block/nvme1n1/dev")).strip()
    used = host.kernel.open_disk("dev/nvme1n1", number)
    with pytest.raises(exception.OsAccError):
        host.plug(1, DRIVE, attach_target=target)
    assert host.manager.store.leases() == ()
    os.close(used)
    host.plug(1, DRIVE, attach_target=target)


@pytest.mark.parametrize("target", ["host", "none"])
def test_another_drive_in_its_place_is_not_erased(host, target):
    host.plug(1, DRIVE, attach_target=target)
    host.unplug(1)
    old = host.kernel.hot_unplug(DRIVE)
    assert old.nvme is not None
    other = dataclasses.replace(old.nvme, serial="B")
    host.kernel.hot_plug(dataclasses.replace(old, nvme=other))
    host.kernel.write_medium(DRIVE, 1, DATA)
    advance(host)
    (lease,) = host.manager.store.leases()
    assert lease.state is LeaseState.QUARANTINED
    assert ":A) has left the host" in lease.reason
    assert DATA in host.kernel.read_medium(DRIVE, 1)


def test_udev_looks_at_the_next_drive_in_the_slot(host):
    host.plug(1, DRIVE)
    old = host.kernel.hot_unplug(DRIVE)
    assert old.nvme is not None
    other = dataclasses.replace(old.nvme, serial="B")
    host.kernel.hot_plug(dataclasses.replace(old, nvme=other))
    host.restart()
    host.unplug(1)
    advance(host)
    assert os.path.exists(host.kernel.path(MARKS, DRIVE))
    release(host, DRIVE, force=True)
    assert not os.path.exists(host.kernel.path(MARKS, DRIVE))


@pytest.mark.parametrize("target", ["host", "none"])
def test_the_host_has_the_disks_meanwhile(host, target):
    host.plug(1, DRIVE, attach_target=target)
    assert host.drivers(DRIVE) == ["nvme"]
    # udev may look at them.
    assert not os.path.exists(host.kernel.path(MARKS, DRIVE))
    host.kernel.write_medium(DRIVE, 1, DATA)
    before = host.kernel.writes()
    host.unplug(1)
    assert host.kernel.writes() == before
    advance(host)
    assert (host.manager.store.leases(), claims.claimed()) == ((), ())
    assert DATA not in host.kernel.read_medium(DRIVE, 1)


def opened_by_process(host: TestHost) -> Path:
    """Let a process have the disk open, without a claim; return its directory."""
    place = Path(host.kernel.path("proc/4711"))
    (place / "fd").mkdir(parents=True)
    (place / "comm").write_text("dd\n")
    (place / "fd/20").symlink_to("/dev/nvme1n1")
    return place


def exported_by_nvmet(host: TestHost) -> Path:
    """Let the NVMe target of the kernel export the disk; return its directory."""
    place = Path(
        host.kernel.path("sys/kernel/config/nvmet/subsystems/nqn/namespaces/1")
    )
    place.mkdir(parents=True)
    (place / "device_path").write_text("/dev/nvme1n1\n")
    return place


@pytest.mark.parametrize("target", ["host", "none"])
@pytest.mark.parametrize("use", [opened_by_process, exported_by_nvmet])
def test_a_drive_is_not_erased_while_its_consumer_has_it_open(host, target, use):
    host.plug(1, DRIVE, attach_target=target)
    of_consumer = use(host)
    host.unplug(1)
    advance(host)
    (lease,) = host.manager.store.leases()
    assert lease.state is LeaseState.ERASING
    assert "dd (pid 4711)" in lease.reason or "nvme1n1 is open in an" in lease.reason
    host.kernel.write_medium(DRIVE, 1, DATA)
    shutil.rmtree(of_consumer)
    advance(host)
    assert host.manager.store.leases() == ()
    assert DATA not in host.kernel.read_medium(DRIVE, 1)


@pytest.mark.parametrize("target", ["host", "none"])
def test_a_drive_that_the_host_uses_keeps_its_lease_after_a_reboot(host, target):
    host.plug(1, DRIVE, attach_target=target)
    host.kernel.reboot()
    host.restart()
    host.kernel.claim("nvme1n1")
    before = host.kernel.writes()
    host.manager.plug(instance(1), None, None)
    assert host.kernel.writes() == before


@pytest.mark.parametrize("target", ["host", "none"])
def test_a_plug_that_fails_leaves_no_record(host, target):
    host.kernel.fail(DRIVE, "identify", times=None)
    with pytest.raises(exception.HostStepFailed):
        host.plug(1, DRIVE, attach_target=target)
    assert (host.manager.store.leases(), claims.claimed()) == ((), ())
    host.kernel.lift()
    host.plug(1, DRIVE, attach_target=target)
