# SPDX-License-Identifier: Apache-2.0

"""A free device that the host reads as broken stays in the inventory, as reserved."""

import dataclasses
import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.placement.capacity import Units
from os_acc.testing import HostSpec, TestHost, hosts
from tests.expected_errors import raises

CARD, OTHER = "0000:05:00.0", "0000:06:00.0"
PF, VFS = "0000:3b:00.0", ("0000:3b:02.0", "0000:3b:02.1")
LINK = (
    ("current_link_speed", "16.0 GT/s PCIe\n"),
    ("current_link_width", "16\n"),
    ("max_link_speed", "16.0 GT/s PCIe\n"),
    ("max_link_width", "16\n"),
    ("power_state", "D0\n"),
)
COUNTERS = tuple(
    (f"aer_dev_{name}", f"Undefined 0\nTOTAL_ERR_{total} 0\n")
    for name, total in (
        ("correctable", "COR"),
        ("nonfatal", "NONFATAL"),
        ("fatal", "FATAL"),
    )
)
SENSOR = (
    ("hwmon/hwmon3/name", "acme\n"),
    ("hwmon/hwmon3/temp1_input", "54000\n"),
    ("hwmon/hwmon3/temp1_crit", "95000\n"),
    ("hwmon/hwmon3/temp1_crit_alarm", "0\n"),
)


@pytest.fixture
def bench(make_bench: Callable[..., TestHost]) -> TestHost:
    """Return a host with two cards; the first reports its health."""
    card = dataclasses.replace(
        hosts.fpga("0000:05"), attributes=(*LINK, *COUNTERS, *SENSOR)
    )
    return make_bench(HostSpec((card, hosts.fpga("0000:06"))))


def show(bench: TestHost, name: str, text: str, address: str = CARD) -> None:
    """Let the card report a value, and the service read it twice."""
    path = Path(bench.root, "sys/bus/pci/devices", address, name)
    # Attributes with equal contents are one file of the fake host.
    path.unlink()
    path.write_text(f"{text}\n")
    read_twice(bench)


def read_twice(bench: TestHost) -> None:
    """Let the service read until a fault counts."""
    for _ in range(2):
        bench.manager.refresh()


def reserved(bench: TestHost, address: str = CARD) -> int:
    """Return the units of a device's provider that Placement has as reserved."""
    uuid = bench.provider(address).uuid
    (found,) = (
        each for each in bench.manager.catalog.snapshots.newest() if each.uuid == uuid
    )
    (units,) = found.units.values()
    assert units == Units(1, units.reserved)
    return units.reserved


@pytest.mark.parametrize(
    ("name", "broken", "healthy", "message"),
    [
        ("current_link_width", "63", "8", "has no PCIe link"),
        ("hwmon/hwmon3/temp1_input", "95000", "94000", "is too hot (acme temp1)"),
        ("hwmon/hwmon3/temp1_crit_alarm", "1", "0", "is too hot (acme temp1)"),
    ],
)
def test_a_broken_device_is_reserved_until_it_is_healthy(
    bench, caplog, name, broken, healthy, message
):
    assert reserved(bench) == 0
    show(bench, name, broken)
    assert (reserved(bench), reserved(bench, OTHER)) == (1, 0)
    assert message in caplog.text
    with raises(exception.NoDeviceReason.NOT_FREE) as caught:
        bench.plug(1, CARD)
    assert message in str(caught.value)
    bench.plug(1, OTHER)
    show(bench, name, healthy)
    assert reserved(bench) == 0
    bench.plug(2, CARD)


def test_a_fault_is_logged_once(bench, caplog):
    caplog.set_level(logging.INFO)
    for _ in range(3):
        show(bench, "current_link_width", "63")
    assert caplog.text.count("has no PCIe link") == 1
    show(bench, "current_link_width", "16")
    assert f"no fault of {CARD} is read any more" in caplog.text


def test_a_single_reading_is_no_fault(bench):
    """The device may have been in a reset."""
    show(bench, "current_link_width", "63")
    show(bench, "current_link_width", "16")
    path = Path(bench.root, "sys/bus/pci/devices", CARD, "current_link_width")
    path.write_text("63\n")
    bench.manager.refresh()
    assert reserved(bench) == 0
    bench.manager.refresh()
    assert reserved(bench) == 1


@pytest.mark.parametrize("state", ["D3cold", "D3hot", "unknown"])
def test_a_device_that_sleeps_is_healthy(bench, state):
    show(bench, "power_state", state)
    show(bench, "current_link_width", "63")
    assert reserved(bench) == 0


def test_a_device_without_a_link_of_its_own_is_healthy(bench):
    """It is an endpoint in the root complex; the kernel shows an unknown maximum."""
    for name, text in (
        ("max_link_width", "255"),
        ("max_link_speed", "Unknown"),
        ("current_link_speed", "Unknown"),
        ("current_link_width", "63"),
    ):
        show(bench, name, text)
    assert reserved(bench) == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("current_link_width", "Unknown"),
        ("current_link_width", "0"),
        ("hwmon/hwmon3/temp1_input", ""),
        ("hwmon/hwmon3/temp1_crit", "0"),
        ("hwmon/hwmon3/temp1_crit", "-273150"),
    ],
)
def test_a_reading_without_a_meaning_is_no_fault(bench, name, text):
    show(bench, name, text)
    assert reserved(bench) == 0


def test_sensors_that_cannot_be_listed_are_no_fault(bench, monkeypatch):
    listdir = os.listdir

    def refuses(path: str) -> list[str]:
        if "hwmon" in str(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", refuses)
    show(bench, "hwmon/hwmon3/temp1_input", "120000")
    assert reserved(bench) == 0


def test_errors_count_only_where_the_operator_sets_a_limit(make_bench, bench):
    show(bench, "aer_dev_nonfatal", "TLP 2\nTOTAL_ERR_NONFATAL 2")
    show(bench, "aer_dev_fatal", "DLP 1\nTOTAL_ERR_FATAL 1")
    assert reserved(bench) == 0
    bench.restart(max_uncorrectable_errors=3)
    assert reserved(bench) == 0
    bench.restart(max_uncorrectable_errors=2)
    assert reserved(bench) == 1
    # Correctable errors lose nothing.
    bench.restart(max_uncorrectable_errors=3)
    show(bench, "aer_dev_correctable", "BadTLP 900\nTOTAL_ERR_COR 900")
    assert reserved(bench) == 0
    # Without all three counters nothing is known.
    bench.restart(max_uncorrectable_errors=0)
    assert reserved(bench) == 1
    show(bench, "aer_dev_fatal", "nothing")
    assert reserved(bench) == 0


def test_a_device_that_is_broken_at_the_start_is_not_attached(bench):
    show(bench, "current_link_width", "63")
    bench.restart()
    assert reserved(bench) == 1
    with raises(exception.NoDeviceReason.NOT_FREE):
        bench.plug(1, CARD)


def test_vfs_have_the_faults_of_their_pf(make_bench):
    nic = dataclasses.replace(
        hosts.nic("0000:3b", name="ens1f0", boot_vfs=2), attributes=LINK
    )
    bench = make_bench(HostSpec((nic,)))
    show(bench, "current_link_width", "63", PF)
    for vf in VFS:
        with raises(exception.NoDeviceReason.NOT_FREE):
            bench.plug(1, vf)


def test_an_nvme_controller_has_its_sensors_below_it(make_bench):
    disk = dataclasses.replace(
        hosts.fpga("0000:05"),
        attributes=tuple(
            (name.replace("hwmon/", "nvme/nvme0/", 1), text) for name, text in SENSOR
        ),
    )
    bench = make_bench(HostSpec((disk,)))
    show(bench, "nvme/nvme0/hwmon3/temp1_input", "120000")
    assert reserved(bench) == 1
