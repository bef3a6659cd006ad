# SPDX-License-Identifier: Apache-2.0

"""Health that only root can read: NVMe drives and QuickAssist."""

import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from os_acc import exception
from os_acc.helper.client import Helper
from os_acc.inventory import health_steps
from os_acc.privsep import worker
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.store import state_files
from os_acc.testing import HostSpec, TestHost, hosts
from tests.expected_errors import raises

DRIVE, OTHER = "0000:d9:00.0", "0000:da:00.0"
PF = "0000:d8:00.0"
CARD = hosts.qat_gen4("0000:d8", 1)
ALL = f'{{"address": "{PF}", "num_vfs": 16}}'
pytestmark = pytest.mark.usefixtures("information")


@pytest.fixture
def information(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


@pytest.fixture
def drives(tmp_path: Path) -> Iterator[TestHost]:
    """Return a host with two drives that are erased between guests."""
    spec = HostSpec((hosts.nvme_disk("0000:d9", 1), hosts.nvme_disk("0000:da", 2)))
    groups = {"os_acc_nvme": {"erase_methods": ["format"]}}
    with TestHost(tmp_path, spec, groups=groups) as host:
        yield host


@pytest.fixture
def qat(make_bench: Callable[..., TestHost]) -> TestHost:
    return make_bench(HostSpec((CARD,)), device_spec=[ALL])


def read(host: TestHost, times: int = 2) -> None:
    """Let the service read until a fault counts."""
    for _ in range(times):
        host.manager.refresh()
        host.manager.health_steps.read()


def reserved(host: TestHost, address: str) -> int:
    """Return the reserved units of a device's provider in Placement."""
    host.manager.refresh()
    uuid = host.provider(address).uuid
    (found,) = (
        each for each in host.manager.catalog.snapshots.newest() if each.uuid == uuid
    )
    (units,) = found.units.values()
    return units.reserved


def faults(host: TestHost) -> set[str]:
    return {
        handle.fault
        for provider in host.manager.providers()
        for handle in provider.device.handles
    }


def test_a_worn_drive_is_reserved_until_it_is_healthy(drives, caplog):
    message = "its spare capacity is below the threshold"
    read(drives)
    assert reserved(drives, DRIVE) == 0
    drives.kernel.wear_out(DRIVE, spare=9)
    read(drives)
    assert (reserved(drives, DRIVE), reserved(drives, OTHER)) == (1, 0)
    assert f"{DRIVE} is out of order: {message}" in caplog.text
    with raises(exception.NoDeviceReason.NOT_FREE) as caught:
        drives.plug(1, DRIVE)
    assert message in str(caught.value)
    drives.plug(1, OTHER)
    drives.kernel.wear_out(DRIVE)
    read(drives, 1)
    assert reserved(drives, DRIVE) == 0
    drives.plug(2, DRIVE)


def test_a_drive_that_a_guest_has_is_never_read(drives, caplog):
    drives.plug(1, DRIVE)
    # A command to it would end the helper's child, and be logged.
    drives.kernel.kill(DRIVE, "log", times=None)
    read(drives)
    assert drives.manager.health_steps._known.keys() == {
        ("nvme", drives.provider(OTHER).device.address)
    }
    assert reserved(drives, DRIVE) == 0
    assert "a lease has taken it" not in caplog.text, "not even asked for"


def test_the_helper_reads_no_function_that_a_lease_has_taken(drives, caplog):
    """The service may have scanned the host before the plug."""
    drives.manager.refresh()
    snapshots = drives.manager.catalog.snapshots
    before = snapshots.offered()
    drives.plug(1, DRIVE)
    snapshots.offered = lambda: before
    drives.manager.health_steps.read()
    assert f"the health of {DRIVE} is unknown: a lease has taken it" in caplog.text


def test_no_operation_reads_the_health_as_root(drives):
    drives.kernel.kill(None, "log", times=None)
    drives.manager.refresh()
    drives.plug(1, DRIVE)
    drives.unplug(1)
    assert faults(drives) == {""}


def test_a_drive_that_does_not_answer_delays_no_other_and_is_reserved_at_once(
    drives, monkeypatch
):
    monkeypatch.setattr(health_steps, "ANSWER_SECONDS", 2.0)
    monkeypatch.setattr(worker, "_LOCK_SECONDS", 0.1)
    read(drives)
    drives.kernel.wear_out(OTHER, 0b1000)
    read(drives, 1)
    drives.kernel.hang(DRIVE, "log")
    read(drives, 1)
    assert reserved(drives, DRIVE) == 1
    assert faults(drives) == {
        f"{DRIVE} {health_steps.STUCK}",
        f"{OTHER} is out of order: its media are read-only",
    }
    drives.kernel.lift()
    for pid in tuple(worker._stuck):
        os.waitpid(pid, 0)
    read(drives, 1)
    assert reserved(drives, DRIVE) == 0


def test_each_step_has_five_seconds_of_its_own_and_a_round_has_forty(
    drives, monkeypatch
):
    now, starts, steps = [1000.0], [], []

    def start(_helper, deadline, _contexts):
        starts.append(deadline)

    def read_health(_helper, _step, _function, deadline):
        steps.append(deadline)
        now[0] = deadline
        return CallResult(Outcome.BUSY)

    drives.manager.refresh()
    monkeypatch.setattr(Helper, "start", start)
    monkeypatch.setattr(Helper, "read_health", read_health)
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(health_steps, "time", clock)
    drives.manager.health_steps.read()
    assert steps == [1005.0, 1010.0]
    assert starts == [1040.0, 1040.0]


def test_a_round_begins_behind_the_last_drive_of_the_round_before(drives, monkeypatch):
    """Hanging devices keep no other one from being read."""
    now, asked = [1000.0], []

    def read_health(_helper, _step, function, _deadline):
        asked.append(str(function.address))
        now[0] += health_steps.ROUND_SECONDS
        return CallResult(Outcome.BUSY)

    drives.manager.refresh()
    monkeypatch.setattr(Helper, "start", lambda *_arguments: None)
    monkeypatch.setattr(Helper, "read_health", read_health)
    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(health_steps, "time", clock)
    for _ in range(3):
        drives.manager.health_steps.read()
    assert asked == [DRIVE, OTHER, DRIVE]


def test_a_helper_that_does_not_start_is_logged_once_and_no_fault(
    drives, monkeypatch, caplog
):
    read(drives)
    start = type(drives.manager.life._helper).start

    def refuse(self, deadline, contexts=()):
        if any("nvme" in each.pypath for each in contexts):
            raise exception.HelperUnavailable("sudo: a password is required")
        start(self, deadline, contexts)

    drives.kernel.wear_out(DRIVE, 0b1000)
    monkeypatch.setattr(type(drives.manager.life._helper), "start", refuse)
    read(drives, 3)
    assert caplog.text.count("sudo: a password is required") == 1
    assert faults(drives) == {""}


def test_a_refused_command_is_no_fault(drives, caplog):
    drives.kernel.fail(DRIVE, "log", 5, times=None)
    read(drives, 3)
    assert reserved(drives, DRIVE) == 0
    assert caplog.text.count(f"the health of {DRIVE} is unknown: EIO") == 1


def test_readings_are_recorded_for_commands(drives):
    drives.kernel.wear_out(DRIVE, 0b1000, used=42, media_errors=7)
    read(drives)
    found = state_files.recorded_health(drives.state_path, drives.root)
    (address,) = found.faults
    assert str(address) == DRIVE
    assert dict(found.readings[address]) == {
        "critical_warning": 8,
        "available_spare_percent": 100,
        "available_spare_threshold_percent": 10,
        "used_percent": 42,
        "media_errors": 7,
    }


def test_a_damaged_record_states_nothing(drives):
    read(drives)
    place = Path(drives.state_path, "health")
    found = json.loads(place.read_text())
    changed = (
        {"faults": None},
        {"faults": {"no address": "x"}},
        {"readings": {DRIVE: {"used_percent": float("inf")}}},
        {"readings": {DRIVE: {"used_percent": {}}}},
    )
    for damage in (
        *("", "[]", "{", '{"boot": 1}', "[" * 90_000),
        *(json.dumps(found | values) for values in changed),
        *(
            json.dumps({key: found[key] for key in found if key != missing})
            for missing in ("faults", "readings")
        ),
    ):
        place.write_text(damage)
        recorded = state_files.recorded_health(drives.state_path, drives.root)
        assert recorded == state_files.HealthRecord(), damage[:40]


def test_a_record_counts_in_its_boot_and_for_a_while(drives, monkeypatch):
    drives.kernel.wear_out(DRIVE, 0b1000)
    read(drives)
    recorded = state_files.recorded_health
    assert recorded(drives.state_path, drives.root).faults
    monkeypatch.setattr(state_files, "MAX_AGE", -1.0)
    assert not recorded(drives.state_path, drives.root).faults
    monkeypatch.undo()
    drives.kernel.reboot()
    assert not recorded(drives.state_path, drives.root).faults


def test_a_pf_without_a_heartbeat_reserves_its_vfs(qat):
    read(qat)
    assert faults(qat) == {""}
    qat.kernel.stop_heartbeat(PF)
    read(qat)
    assert len(faults(qat)) == 16
    assert all(
        each.endswith(f"depends on {PF}, which does not respond to its heartbeat")
        for each in faults(qat)
    )
    qat.kernel.restart_heartbeat(PF)
    read(qat, 1)
    assert faults(qat) == {""}


def test_a_heartbeat_is_read_while_guests_have_vfs(qat):
    qat.plug(1, PF)
    qat.kernel.stop_heartbeat(PF)
    read(qat)
    assert all(PF in each for each in faults(qat))
    assert reserved(qat, PF) == 15
    assert qat.unplug(1) == 1


def test_a_pf_that_another_process_has_just_queried_is_healthy(qat, caplog):
    qat.kernel.crowd_heartbeat(PF)
    read(qat)
    assert faults(qat) == {""}
    assert "it was not queried" in caplog.text


def test_another_status_is_unknown(qat):
    read(qat)
    place = Path(qat.root, "sys/kernel/debug", f"qat_4xxx_{PF}", "heartbeat/status")
    query = type(qat.kernel).read
    for text in ("", "2\n", "alive"):

        def answer(self: object, path: str, text: str = text) -> str:
            return text if path == str(place) else query(self, path)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(qat.kernel), "read", answer)
            read(qat)
        assert faults(qat) == {""}


def test_without_debugfs_the_health_is_unknown(qat):
    qat.kernel.stop_heartbeat(PF)
    read(qat)
    qat.kernel.unmount_debugfs()
    read(qat, 1)
    assert faults(qat) == {""}


def test_a_whole_pf_that_is_free_is_read(make_bench):
    bench = make_bench(HostSpec((CARD,)))
    bench.kernel.stop_heartbeat(PF)
    read(bench, 1)
    assert faults(bench) == {f"{PF} does not respond to its heartbeat"}


def test_an_earlier_card_has_a_heartbeat_as_well(make_bench):
    spec = f'{{"address": "{hosts.qat("0000:3d").address}", "num_vfs": 16}}'
    host = HostSpec((hosts.qat("0000:3d", 0),), disable_denylist=True)
    bench = make_bench(host, device_spec=[spec])
    bench.kernel.stop_heartbeat("0000:3d:00.0")
    read(bench, 1)
    assert len(faults(bench)) == 16


def test_root_reads_only_what_its_configuration_names(make_bench, caplog):
    bench = make_bench(HostSpec((CARD,)), device_spec=[ALL])
    place = Path(bench.root, "etc/os-acc/privileged.conf")
    place.parent.mkdir(parents=True)
    place.write_text(f"[os_acc]\ndevice_spec = {ALL}\n")
    bench.kernel.stop_heartbeat(PF)
    read(bench)
    assert "" not in faults(bench)
    place.write_text('[os_acc]\ndevice_spec = {"address": "0000:01:00.0"}\n')
    read(bench)
    assert faults(bench) == {""}
    assert "root's configuration denies it" in caplog.text


def test_a_reading_does_not_outdate_the_call_of_a_plug(drives):
    """The epoch of the drive's lock is that of its last operation."""
    lock = Path(drives.root, "run/os_acc", DRIVE)
    drives.plug(1, DRIVE)
    drives.unplug(1)
    while drives.manager.store.leases():
        drives.manager.retrier.retry()[0].result()
    before = lock.read_bytes()
    read(drives)
    assert lock.read_bytes() == before


def test_one_round_in_a_minute_without_any_wait(drives):
    drives.manager.refresh()
    reader = drives.manager.health_steps
    running = reader.begin()
    assert running is not None
    assert reader.begin() is None
    running.result(60)
    drives.manager.watch()
    assert reader.begin() is None
    reader._due = 0.0
    again = reader.begin()
    assert again not in (None, running)
    again.result(60)


def test_each_step_runs_in_the_helper_of_its_context(tmp_path):
    """A module that the helper has not preloaded would fail there alone."""
    spec = HostSpec((hosts.nvme_disk("0000:d9", 1), CARD))
    groups = {"os_acc_nvme": {"erase_methods": ["format"]}}
    with TestHost(tmp_path, spec, groups=groups, separate_helper=True) as host:
        host.kernel.wear_out(DRIVE, 0b1000)
        host.kernel.stop_heartbeat(PF)
        read(host, 1)
        assert faults(host) == {
            f"{DRIVE} is out of order: its media are read-only",
            f"{PF} does not respond to its heartbeat",
        }
        assert not host.manager.health_steps.defects
