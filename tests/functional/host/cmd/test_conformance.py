# SPDX-License-Identifier: Apache-2.0

"""``os-acc conformance`` on one device: its checks, its refusals and its report."""

from __future__ import annotations

import dataclasses
import datetime
import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from os_acc import exception
from os_acc.attach.manager import Manager
from os_acc.objects import mdev
from os_acc.objects.lease import LeaseState
from os_acc.plugins import base
from os_acc.plugins.pci import PciPlugin
from os_acc.testing import HostSpec, TestHost, hosts
from os_acc.testing.conformance import hardware, report
from os_acc.testing.conformance.touches import Touches
from os_acc.testing.mdevs import mtty
from os_acc.testing.test_host import EVERYTHING
from tests.unit.cmd.console import Console, Ran
from tests.unit.cmd.golden_files import expect

GPU, VF, DISK = "0000:17:00.0", "0000:3b:02.0", "0000:04:00.0"
AUDIO = "0000:17:00.1"
WITH_VFS = '{"address": "0000:3b:00.0", "num_vfs": 2}'
MTTY = '{"mdev_parent": "mtty", "mdev_types": "mtty-2"}'
ONE_GPU = '{"address": "0000:17:00.0"}'
MDEVS_OF_GPU = '{"address": "0000:17:00.0", "mdev_types": "nvidia-558"}'
KILLS = hardware.kills_lose_nothing.__name__
QUICK = ("--yes", "--check", "unplug_restores_the_host")


def conformance(console: Console, *arguments: str) -> Ran:
    return console.run("conformance", *arguments)


def refused(console: Console, *arguments: str) -> str:
    """Return the message of a command that fails."""
    ran = conformance(console, *arguments, *QUICK)
    assert ran.status == 1
    return ran.err


def results(console: Console, *arguments: str) -> dict[str, str]:
    ran = conformance(console, *arguments, "--yes", "-f", "json")
    return {row["Check"]: row["Result"] for row in json.loads(ran.out)}


def test_a_whole_device_passes_and_stays_as_it_was(console):
    before = console.bench.kernel.snapshot()

    found = results(console, "--device", GPU)

    names = [each.__name__ for each in hardware.CHECKS]
    assert found == dict.fromkeys(names, "passed")
    assert console.bench.kernel.snapshot() == before
    assert console.bench.manager.store.leases() == ()


def test_no_other_unit_of_the_card_is_touched(console):
    console.configure(WITH_VFS)
    bench = console.bench
    bench.restart(device_spec=[WITH_VFS])
    seen = len(bench.kernel.writes())

    assert set(results(console, "--device", VF).values()) == {"passed"}

    touched = {
        word
        for write in bench.kernel.writes(seen)
        for word in (*write.path.split("/"), write.text.strip())
        if word.startswith("0000:")
    }
    assert touched == {VF}


def test_a_mediated_device_passes(tmp_path):
    spec = HostSpec(mdev_parents=(mtty(),))
    with TestHost(tmp_path, spec) as host:
        console = Console(host, tmp_path)
        console.configure(MTTY)

        found = results(console, "--device", "mtty/mtty-2/3")

    assert set(found.values()) == {"passed"}


@pytest.mark.parametrize(
    ("spec", "address", "reason", "remedy"),
    [
        (EVERYTHING, DISK, "used by the host", "'os-acc check' has the remedies"),
        (
            EVERYTHING,
            "0000:ff:00.0",
            "there is none",
            "compare the address with the output of 'lspci -D'",
        ),
        (
            EVERYTHING,
            AUDIO,
            f"it goes to a guest together with {GPU}, in whose IOMMU group it is",
            f"check that one: --device {GPU}",
        ),
        (
            ONE_GPU,
            DISK,
            "no entry of [os_acc] device_spec offers it",
            "add an entry for it",
        ),
        (
            MDEVS_OF_GPU,
            f"{GPU}/nvidia-558/0",
            "without the mediated devices that device_spec names: it offers none",
            "'os-acc check' has the remedies",
        ),
    ],
)
def test_a_device_that_is_not_offered_is_refused(
    console, spec, address, reason, remedy
):
    console.configure(spec)

    error, _, hint = refused(console, "--device", address).partition("\nhint: ")
    assert f"{address} is not offered: {reason}" in error
    assert remedy in hint


def test_a_unit_that_mediated_devices_lack_is_refused(tmp_path):
    spec = HostSpec(mdev_parents=(mtty(),))
    with TestHost(tmp_path, spec) as host:
        console = Console(host, tmp_path)
        console.configure(MTTY)
        (provider,) = host.restart(device_spec=[MTTY]).discover().providers.values()
        units = len(provider.device.handles)

        error = refused(console, "--device", f"mtty/mtty-2/{units}")
    assert f"is not offered: it has {units} units" in error
    assert f"hint: check another one: --device mtty/mtty-2/{units - 1}" in error


def test_a_function_that_cannot_be_read_is_refused(console):
    node = Path(console.bench.root, "sys/bus/pci/devices", GPU, "numa_node")
    # Attributes of the simulated host share files.
    node.unlink()
    node.write_text("two\n")

    error = refused(console, "--device", GPU)
    assert f"{GPU} is not offered: it is unreadable: " in error


def test_a_card_with_a_leased_vf_is_refused(console):
    console.bench.restart(device_spec=[WITH_VFS])
    console.bench.plug(1, VF)

    error = refused(console, "--device", "0000:3b:00.0")
    assert "0000:3b:00.0 is not offered" in error


def test_another_plugin_is_refused(console):
    error = refused(console, "--device", GPU, "--plugin", "dfl")
    assert f"the plugin pci offers {GPU}, not dfl" in error


@pytest.mark.parametrize(("answer", "status"), [("yes\n", 0), ("y\n", 1), ("", 1)])
def test_it_asks_before_it_starts(console, monkeypatch, answer, status):
    monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
    seen = len(console.bench.kernel.writes())

    ran = conformance(console, "--device", GPU, *QUICK[1:])

    assert ran.status == status
    assert "Type yes to start" in ran.err
    assert bool(console.bench.kernel.writes(seen)) is (status == 0)


def test_a_broken_rule_is_reported(console, monkeypatch):
    def release(
        self: PciPlugin, handle: base.AttachHandle, steps: base.PrivilegedSteps
    ) -> None:
        path = f"{self.root}/sys/bus/pci/devices/{handle.address}/driver_override"
        console.bench.kernel.write(path, "acme")

    monkeypatch.setattr(PciPlugin, "release", release)

    error = refused(console, "--device", GPU)
    assert "unplug_restores_the_host failed: an unplug restores the device" in error
    assert "driver_override='acme'" in error


def test_a_device_that_an_earlier_run_left_in_quarantine_is_refused(console):
    bench = hardware.Bench(console.bench.restart, hardware_address(GPU))
    bench.plug()
    console.bench.kernel.ignore(GPU, "drivers_probe", times=None)
    with pytest.raises(exception.DevicesUnreleased):
        bench.unplug()
    console.bench.end_faults()

    error, _, hint = refused(console, "--device", GPU).partition("\nhint: ")
    assert f"{GPU} of {bench.instance(0)['uuid']}" in error
    assert "is quarantined: " in error
    assert hint.startswith(f"run 'os-acc device release {GPU}'")
    assert console.run("device", "release", GPU).status == 0
    assert conformance(console, "--device", GPU, *QUICK).status == 0


@pytest.mark.parametrize(
    ("state", "hint"),
    [
        (LeaseState.HELD, "take a free device, or unplug it first"),
        (LeaseState.ERASING, "take a free device, or wait until it is erased"),
    ],
)
def test_the_device_of_another_instance_is_refused(console, state, hint):
    console.bench.plug(1, GPU)
    store = console.bench.manager.store
    store.replace([dataclasses.replace(each, state=state) for each in store.leases()])
    before = store.leases()
    error = refused(console, "--device", GPU)
    assert store.leases() == before
    assert f"{GPU} is leased to" in error
    assert error.partition("\nhint: ")[2].strip() == hint


def run_in_a_process(console: Console) -> int:
    """Return a process that has plugged the GPU for its run, and stays so."""
    ready, begun = os.pipe()
    pid = os.fork()
    if pid:
        os.close(begun)
        assert os.read(ready, 1) == b"1"
        os.close(ready)
        return pid
    try:
        with hardware.Bench.alone(console.bench.start, hardware_address(GPU)) as bench:
            bench.plug()
            os.write(begun, b"1")
            signal.pause()
    finally:
        os._exit(1)


def test_a_second_run_takes_no_device_from_the_first(console):
    first = run_in_a_process(console)
    try:
        seen = len(console.bench.kernel.writes())
        ran = conformance(console, "--device", GPU, *QUICK)

        assert ran.status == 1
        assert f"another conformance run is at work on {GPU}" in ran.err
        assert "hint: wait until it ends" in ran.err
        assert console.bench.kernel.writes(seen) == []
        assert console.bench.drivers(GPU) == ["vfio-pci"]
    finally:
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
    # The lock ends with the process; its lease does not.
    assert len(console.bench.manager.store.leases()) == 1
    assert conformance(console, "--device", GPU, *QUICK).status == 0
    assert console.bench.drivers(GPU) == ["nouveau"]
    assert console.bench.manager.store.leases() == ()


def test_runs_on_one_parent_of_mediated_devices_exclude_each_other(tmp_path):
    slots = [mdev.parse_address(f"mtty/mtty-2/{each}") for each in range(2)]
    spec = HostSpec(mdev_parents=(mtty(),))
    with TestHost(tmp_path, spec, device_spec=[MTTY]) as host:
        with (
            hardware.Bench.alone(host.start, slots[0]),
            pytest.raises(exception.Conflict, match=r"at work on mtty \("),
            hardware.Bench.alone(host.start, slots[1]),
        ):
            pytest.fail("two runs are at work on one parent")
        with hardware.Bench.alone(host.start, slots[1]) as bench:
            assert bench.address == slots[1]


def test_an_interrupt_gives_the_device_back(console, monkeypatch):
    def interrupted(bench: hardware.Bench) -> None:
        bench.plug()
        raise KeyboardInterrupt

    bench = hardware.Bench(console.bench.restart, hardware_address(GPU))

    with pytest.raises(KeyboardInterrupt):
        list(report.run(bench, [interrupted]))

    assert console.bench.drivers(GPU) == ["nouveau"]
    assert console.bench.manager.store.leases() == ()


def test_kills_are_skipped_without_a_helper_of_their_own(console, monkeypatch):
    broken = hardware.RuleBroken("HelperUnavailable('sudo')")
    monkeypatch.setattr(Touches, "run", mock.Mock(side_effect=broken))

    found = results(console, "--device", GPU, "--check", KILLS)

    assert found == {KILLS: "skipped"}


def test_parts_of_the_kills_are_all_of_them(console, tmp_path, monkeypatch):
    done: list[int] = []

    class Recorded(Touches):
        def __init__(self, manager: Manager, plugin: str, target: int = 0) -> None:
            super().__init__(manager, plugin, target)
            done.extend([target] if target else [])

    def kills(part: str) -> list[int]:
        done.clear()
        kept = tmp_path / "report.json"
        options = ("--kills", part, "--report", str(kept))
        found = results(console, "--device", GPU, "--check", KILLS, *options)
        assert found == {KILLS: "passed"}
        assert json.loads(kept.read_text())["kills"] == part
        return list(done)

    monkeypatch.setattr(hardware, "Touches", Recorded)
    everything = kills("1/1")

    assert everything == list(range(1, len(everything) + 1))
    assert [kills("1/2"), kills("2/2")] == [everything[::2], everything[1::2]]


def test_a_part_without_kills_is_skipped(console):
    options = ("--check", KILLS, "--kills", "999/999")

    assert results(console, "--device", GPU, *options) == {KILLS: "skipped"}


def hardware_address(text: str) -> base.PciAddress:
    return base.PciAddress.parse(text)


@pytest.fixture
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each run have the same versions, host and times."""
    now = datetime.datetime(2027, 1, 15, 8, 30, tzinfo=datetime.UTC)
    as_json = report.as_json

    def fixed_json(*args: Any, **options: Any) -> dict[str, Any]:
        return as_json(*args, **options, now=lambda: now)

    class Uname:
        release, machine = "6.1.0-40-amd64", "x86_64"

    monkeypatch.setattr(report, "as_json", fixed_json)
    monkeypatch.setattr(os, "uname", lambda: Uname)
    monkeypatch.setattr(report.metadata, "version", lambda _name: "1.0.0")
    monkeypatch.setattr(report, "_rounded", lambda _seconds: 0.1)


@pytest.mark.usefixtures("fixed")
def test_what_the_manual_shows(console, tmp_path):
    file = tmp_path / "report.json"
    checks = ("names_survive_restart", "unplug_restores_the_host")
    chosen = [word for name in checks for word in ("--check", name)]

    ran = conformance(console, "--device", GPU, "--yes", "--report", str(file), *chosen)

    assert ran.status == 0
    expect("conformance.txt", ran.out)
    found = json.loads(file.read_text())
    # The installed package of the tests has a version of its own.
    found["plugin"]["version"] = "1.0.0"
    expect("conformance.json", json.dumps(found, indent=2) + "\n")
    assert "serial" not in found["device"]


def test_the_question_says_that_a_drive_is_erased(tmp_path, monkeypatch):
    disk = hosts.nvme_disk("0000:d9", 1, 1)
    monkeypatch.setattr(sys, "stdin", io.StringIO("yes\n"))
    with TestHost(tmp_path, HostSpec((disk,))) as host:
        host.kernel.write_medium("0000:d9:00.0", 1, b"data of a guest")
        console = Console(host, tmp_path)
        ran = conformance(console, "--device", "0000:d9:00.0", *QUICK[1:])
        assert ran.status == 0, ran.err
        assert "its data is lost" in ran.err
        assert b"data of a guest" not in host.kernel.read_medium("0000:d9:00.0", 1)
        assert host.manager.store.leases() == ()


def test_a_report_has_the_serial_number_if_asked(tmp_path):
    disk = hosts.nvme_disk("0000:d9", 1, 1)
    with TestHost(tmp_path, HostSpec((disk,))) as host:
        console = Console(host, tmp_path)
        file = tmp_path / "report.json"
        ran = conformance(
            *(console, "--device", "0000:d9:00.0", "--serial"),
            *("--report", str(file), *QUICK),
        )
        assert ran.status == 0, ran.err
    assert "serial" in json.loads(file.read_text())["device"]
