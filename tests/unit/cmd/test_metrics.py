# SPDX-License-Identifier: Apache-2.0

"""``os-acc metrics`` as a program reads it that collects metrics."""

import dataclasses
import re
import subprocess
from concurrent import futures
from pathlib import Path

import pytest
from prometheus_client import parser

from os_acc import exception
from os_acc.cmd import metrics as command
from os_acc.cmd.metrics import exposition
from os_acc.plugins.dfl import DflPlugin
from os_acc.testing import HostSpec, hosts
from tests.silent_files import impatient as impatient
from tests.silent_files import silent
from tests.unit.cmd.console import Console
from tests.unit.cmd.monitored_host import CARD, DRIVE, OTHER, READINGS

LINK = READINGS[3:8]
ETC = Path(__file__).parents[3] / "etc"
MANUAL = ETC.parent / "doc/source/user/command.rst"


@pytest.fixture
def bench(make_bench):
    """Return a host with two cards; the first is too hot."""
    cards = (hosts.fpga("0000:05"), hosts.fpga("0000:06"))
    return make_bench(
        HostSpec(
            (
                dataclasses.replace(cards[0], attributes=READINGS),
                dataclasses.replace(cards[1], attributes=LINK),
            )
        )
    )


def metrics(console: Console) -> dict[tuple[str, ...], float]:
    """Return each value by the name of its sample and the values of its labels."""
    ran = console.run("metrics")
    assert (ran.status, ran.err) == (0, "")
    return samples(ran.out)


def samples(text: str) -> dict[tuple[str, ...], float]:
    return {
        (each.name, *map(str, each.labels.values())): each.value
        for family in parser.text_string_to_metric_families(text)
        for each in family.samples
    }


def test_units_leases_and_faults(bench, console):
    bench.plug(1, OTHER)
    found = metrics(console)
    names = {each: bench.provider(each).name for each in (CARD, OTHER)}
    accelerator = "CUSTOM_ACCELERATOR_FPGA"
    expected = {
        "os_acc_units": (1, 1),
        "os_acc_reserved_units": (1, 0),
        "os_acc_leased_units": (0, 1),
    }
    for name, values in expected.items():
        for address, value in zip((CARD, OTHER), values, strict=True):
            assert found[name, names[address], accelerator] == value
    assert found["os_acc_leases", "leased"] == 1
    assert found["os_acc_leases", "quarantined"] == 0
    assert found["os_acc_faulty", CARD, names[CARD]] == 1
    assert found["os_acc_faulty", OTHER, names[OTHER]] == 0
    assert found["os_acc_rejected_functions", "BRIDGE"] == 0


def test_readings_of_a_device(bench, console):
    found = {key: value for key, value in metrics(console).items() if CARD in key[1:2]}
    del found["os_acc_faulty", CARD, bench.provider(CARD).name]
    assert found == {
        ("os_acc_pcie_errors_total", CARD, "correctable"): 7,
        ("os_acc_pcie_errors_total", CARD, "nonfatal"): 2,
        ("os_acc_pcie_errors_total", CARD, "fatal"): 0,
        ("os_acc_pcie_link_lanes", CARD, "current"): 8,
        ("os_acc_pcie_link_lanes", CARD, "max"): 16,
        ("os_acc_pcie_link_transfers_per_second", CARD, "current"): 8e9,
        ("os_acc_pcie_link_transfers_per_second", CARD, "max"): 16e9,
        ("os_acc_temperature_celsius", CARD, "acme temp1"): 96.5,
    }


def test_a_faulty_device_is_shown_with_its_fault(bench, console):
    assert "too hot" in console.run("device", "show", CARD).out


def test_readings_that_the_service_has_made_as_root(make_bench, tmp_path):
    groups = {"os_acc_nvme": {"erase_methods": ["format"]}}
    host = make_bench(HostSpec((hosts.nvme_disk("0000:d9", 1),)), groups=groups)
    console = Console(host, tmp_path)
    console.configure()
    assert not any(key[0] == "os_acc_health" for key in metrics(console))
    host.kernel.wear_out(DRIVE, 0b1000, used=42)
    host.manager.health_steps.read()
    found = metrics(console)
    assert found["os_acc_health", DRIVE, "used_percent"] == 42
    assert found["os_acc_health", DRIVE, "available_spare_percent"] == 100
    assert found["os_acc_faulty", DRIVE, host.provider(DRIVE).name] == 1
    device = console.device(DRIVE)
    assert device["State"] == "faulty"
    assert "its media are read-only" in device["Reason"]


@pytest.mark.usefixtures("impatient")
def test_a_silent_sensor_delays_no_other_device(bench, console):
    """As of a driver whose card does not answer."""
    (sensor,) = Path(bench.root).glob(f"sys/devices/**/{CARD}/hwmon/hwmon3/temp1_input")
    with silent(sensor):
        ran = console.run("metrics")
        assert f"cannot read the health of {CARD}" in ran.err
        found = {
            key[1] for key in samples(ran.out) if key[0] == "os_acc_pcie_link_lanes"
        }
        assert found == {OTHER}
        # It did not answer before, either.
        device = console.device(CARD)
        assert device["State"] == "faulty"
        assert "does not answer when its health is read" in device["Reason"]
        assert console.device(OTHER)["State"] == "free"


def test_rejected_devices_and_failed_plugins_are_counted(console, monkeypatch):
    console.configure('{"address": "0000:05:*.*"}', more="enabled_plugins = dfl")
    assert metrics(console)["os_acc_rejected_functions", "NO_PLUGIN"] == 1

    def fails(*_arguments: object) -> None:
        raise OSError("no answer")

    monkeypatch.setattr(DflPlugin, "discover", fails)
    found = metrics(console)
    assert found["os_acc_failed_plugins", "dfl"] == 1
    assert found["os_acc_rejected_functions", "PLUGIN_FAILED"] == 1


def test_a_vf_has_the_readings_of_its_pf(make_bench, tmp_path):
    nic = dataclasses.replace(
        hosts.nic("0000:3b", name="ens1f0", boot_vfs=2), attributes=READINGS
    )
    console = Console(make_bench(HostSpec((nic,))), tmp_path)
    console.configure('{"vendor_id": "8086", "product_id": "1889"}')
    found = metrics(console)
    link = {key for key in found if key[0] == "os_acc_pcie_link_lanes"}
    assert {address for _, address, _ in link} == {"0000:3b:00.0"}


def test_labels_may_be_any_text():
    text = 'a "quoted" \\ back\nslash'
    shown = exposition([("a", text, [(0.1, {"b": text})])])
    (found,) = parser.text_string_to_metric_families(shown)
    assert found.documentation == text
    (sample,) = found.samples
    assert (sample.labels, sample.value) == ({"b": text}, 0.1)


def test_a_metric_without_a_sample_is_left_out():
    assert exposition([("a", "nothing", [])]) == ""


def test_the_manual_has_each_metric():
    rows = re.findall(r"\* - ``(os_acc_\w+)``", MANUAL.read_text())
    assert rows
    source = Path(command.__file__).read_text()
    assert set(rows) == set(re.findall(r'"(os_acc_\w+)"', source))


def test_unforeseen_errors_of_the_service_are_counted(bench, console, monkeypatch):
    assert metrics(console)[("os_acc_unforeseen_errors_total",)] == 0
    bench.plug(1, OTHER)
    bench.kernel.hold(OTHER)
    with pytest.raises(exception.DevicesUnreleased):
        bench.unplug(1)
    recovery = bench.manager.recovery
    monkeypatch.setattr(recovery, "settle_if_free", lambda *_: 1 / 0)
    for _ in range(2):
        futures.wait(bench.manager.retrier.retry())
    assert metrics(console)[("os_acc_unforeseen_errors_total",)] == 2


def test_a_state_that_cannot_be_read_is_not_up(bench, console):
    """The file of the collector must not keep older values."""
    bench.plug(1, OTHER)
    assert metrics(console)["os_acc_up",] == 1
    store = Path(bench.state_path, "os_acc.sqlite")
    store.write_bytes(b"damaged" + store.read_bytes()[7:])
    ran = console.run("metrics")
    assert ran.status == 0
    assert samples(ran.out) == {("os_acc_up",): 0}
    assert str(store) in ran.err


def test_systemd_accepts_the_timer_and_the_service(tmp_path):
    units = []
    for name in ("os-acc-metrics.service", "os-acc-metrics.timer"):
        text = (ETC / "systemd/system" / name).read_text()
        units.append(tmp_path / name)
        units[-1].write_text(text.replace("Documentation=man:node_exporter(1)\n", ""))
    command = ["systemd-analyze", "verify", *map(str, units)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("text", ["no section\n", None], ids=["invalid", "missing"])
def test_a_configuration_that_cannot_be_read_is_not_up(console, text):
    console.config_file.unlink()
    if text:
        console.config_file.write_text(text)
    ran = console.run("metrics")
    assert samples(ran.out) == {("os_acc_up",): 0}
    assert str(console.config_file) in ran.err
