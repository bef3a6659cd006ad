# SPDX-License-Identifier: Apache-2.0

"""An erasure that stands still, and a drive that does not let itself be erased."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.attach import erasure
from os_acc.objects.lease import LeaseState
from os_acc.objects.pci import PciAddress
from os_acc.privsep import claims, record
from os_acc.testing import TestHost
from os_acc.testing.device_specs import BLOCK, NvmeSpec
from tests.functional.host.operator_commands import release
from tests.functional.host.plugins.nvme_drive import DRIVE, advance, host_with
from tests.functional.host.plugins.nvme_drive import lease_of as lease

HOUR, TIME_NS = 3600, time.time_ns
STALLED = "its erasure has stood at 50.0% for 6 hours"


@pytest.fixture
def host(tmp_path: Path) -> Iterator[TestHost]:
    """Yield a host whose drive sanitizes itself, and has done a half."""
    with host_with(tmp_path, NvmeSpec(sanicap=BLOCK)) as host:
        host.plug(1, DRIVE)
        host.unplug(1)
        for _call in range(2):
            advance(host)
            host.kernel.advance_sanitize(DRIVE, 0.5)
        yield host
        host.manager.store.delete(host.manager.store.leases())
        record.remove(PciAddress.parse(DRIVE))


def pass_hours(monkeypatch: pytest.MonkeyPatch, hours: float) -> None:
    later = int(hours * HOUR * 10**9)
    monkeypatch.setattr(time, "time_ns", lambda: TIME_NS() + later)


def stall(host: TestHost, monkeypatch: pytest.MonkeyPatch) -> None:
    pass_hours(monkeypatch, 6.1)
    # The time without progress does not begin again with the service. It watches for
    # some time: the host may have been off.
    host.restart()
    for _call in range(2):
        advance(host)
        assert lease(host).state is LeaseState.ERASING
    monkeypatch.setattr(erasure, "_WATCHED_SECONDS", 0)
    advance(host)
    assert lease(host).state is LeaseState.QUARANTINED
    assert STALLED in lease(host).reason


def test_an_operation_that_stands_still_is_quarantined(host, monkeypatch):
    advance(host)
    pass_hours(monkeypatch, 5.9)
    advance(host)
    assert (lease(host).state, lease(host).reason) == (LeaseState.ERASING, "")
    stall(host, monkeypatch)


def test_progress_begins_the_time_again(host, monkeypatch):
    pass_hours(monkeypatch, 6.1)
    host.kernel.advance_sanitize(DRIVE, 0.75)
    advance(host)
    # The store has the time of the host's own clock.
    pass_hours(monkeypatch, 5.9)
    advance(host)
    assert lease(host).state is LeaseState.ERASING


def test_a_release_continues_an_operation_that_goes_on(host, monkeypatch):
    stall(host, monkeypatch)
    with pytest.raises(exception.HostStepFailed, match=STALLED):
        release(host, DRIVE)
    assert lease(host).state is LeaseState.QUARANTINED
    host.kernel.advance_sanitize(DRIVE, 0.75)
    release(host, DRIVE)
    assert lease(host).state is LeaseState.ERASING
    host.kernel.advance_sanitize(DRIVE, 1.0)
    advance(host)
    assert host.manager.store.leases() == ()


def test_a_drive_that_stands_still_can_be_given_up(host, monkeypatch):
    with pytest.raises(exception.Conflict, match="is being erased"):
        release(host, DRIVE, force=True)
    stall(host, monkeypatch)
    release(host, DRIVE, force=True)
    assert (host.manager.store.leases(), claims.claimed()) == ((), ())
    # It does no I/O before the operation has ended.
    with pytest.raises(exception.HostStepFailed, match="sanitize operation is running"):
        host.plug(2, DRIVE)
    host.kernel.advance_sanitize(DRIVE, 1.0)
    host.plug(2, DRIVE)


@pytest.mark.parametrize(
    ("sanicap", "status", "meaning"),
    [
        (0, 0x4015, "0x4015: the drive is locked (TCG Opal)"),
        (BLOCK, 0x4286, "0x4286: the drive is locked (TCG Opal)"),
        (0, 0x1C, "0x1c: its last sanitize operation failed"),
        (BLOCK, 0x401D, "0x401d: a sanitize operation is running"),
        (0, 0x20, "0x20: the namespace is write protected"),
    ],
)
def test_a_locked_drive_says_why_it_cannot_be_erased(
    tmp_path, status, meaning, sanicap
):
    spec = NvmeSpec(sanicap=sanicap, refusal=status)
    with host_with(tmp_path, spec) as host:
        host.plug(1, DRIVE)
        host.unplug(1)
        advance(host)
        assert lease(host).state is LeaseState.QUARANTINED
        assert meaning in lease(host).reason
