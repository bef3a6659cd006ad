# SPDX-License-Identifier: Apache-2.0

"""The quick start and the page of a device on a real host, followed word for word.

From an empty host to a guest of QEMU that has a device, and back. The package of this
environment replaces the one that the page installs, and the address of a device
of this machine the one on the page.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import device_pages, quickstart

from . import lane, machine, sysfs
from .machine import Machine
from .nvme_media import holds_data, node_of, write_data

pytestmark = pytest.mark.family("Any other PCI function")

BINARIES = Path(sys.executable).parent
#: The files that the page makes; those of other tests are gone, too.
CONFIGURATION, STATE = Path("/etc/os-acc"), Path("/var/lib/os_acc")
MODULES = Path("/etc/modules-load.d/vfio-pci.conf")
RULES = Path("/etc/udev/rules.d/50-os-acc.rules")
NOVA = Path("/etc/nova/nova.conf")
#: Software emulation starts a helper slowly.
PATIENCE = "[os_acc]\ninitialize_timeout = 300\nhelper_start_timeout = 240\n"


@pytest.fixture
def empty_host() -> Iterator[None]:
    """Let the host be without os_acc before and after the test."""

    def clear() -> None:
        for each in (CONFIGURATION, STATE):
            shutil.rmtree(each, ignore_errors=True)
        for each in (MODULES, RULES, NOVA):
            each.unlink(missing_ok=True)

    clear()
    patience = CONFIGURATION / "os-acc.conf.d/patience.conf"
    patience.parent.mkdir(parents=True)
    patience.write_text(PATIENCE)
    yield
    clear()


def follow(step: quickstart.Step, device: str) -> str:
    """Run the commands of a step as root, on this device; return what they print.

    :raises AssertionError: a command failed.
    """
    printed = ""
    for command in step.commands:
        ran = subprocess.run(
            ["bash", "-c", command.text.replace(quickstart.ADDRESS, device)],
            input=command.typed,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, f"{command}: {ran.stdout}{ran.stderr}"
        printed += ran.stdout
    return printed


@pytest.mark.usefixtures("empty_host")
def test_from_an_empty_host_to_a_guest_with_a_device(the_machine: Machine) -> None:
    device = the_machine.edu_node1
    before = sysfs.driver(device), sysfs.override(device)
    printed: dict[str, str] = {}
    driver: dict[str, str | None] = {}
    for step in quickstart.steps(quickstart.REAL):
        if step.name == quickstart.INSTALL:
            assert (BINARIES / "os-acc").exists()
            continue
        printed[step.name] = follow(step, device)
        driver[step.name] = sysfs.driver(device)

    assert printed["iommu"].split()
    assert MODULES.read_text() == "vfio-pci\n"
    assert device in printed["device-list"]
    assert printed["plug"] == f"{device}\n"
    assert driver["plug"] == "vfio-pci"
    # The monitor of QEMU names the device while the guest runs.
    assert 'id "accelerator"' in printed["guest"]
    assert "1234:11e8" in printed["guest"]
    assert driver["guest"] == "vfio-pci"
    assert (sysfs.driver(device), sysfs.override(device)) == before


def run(command: str) -> str:
    """Run a command as root in the checkout; return what it prints.

    :raises AssertionError: it failed.
    """
    ran = subprocess.run(
        ["bash", "-c", command],
        cwd=lane.CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, f"{command}: {ran.stdout}{ran.stderr}"
    return ran.stdout


@pytest.mark.usefixtures("empty_host")
def test_the_page_of_a_drive_leads_to_a_guest_and_an_erased_drive() -> None:
    """os-acc, alone on this host, plugs what the flavor of the page requests."""
    shown = "0000:d9:00.0"
    drive = machine.behind(lane.PORT_DRIVE)
    before = sysfs.driver(drive)
    write_data(node_of(drive, 1))
    (configuration,) = device_pages.blocks("nvme", "ini")
    NOVA.parent.mkdir(exist_ok=True)
    patience = PATIENCE.partition("\n")[2]
    NOVA.write_text(configuration.replace(shown, drive) + patience)
    STATE.mkdir(mode=0o750)
    for command in device_pages.lines("nvme"):
        if not command.startswith("openstack "):
            printed = run(command.replace(shown, drive))
            assert "| failed" not in printed
    assert MODULES.read_text() == "vfio-pci\n"
    assert RULES.exists()
    ((key, amount),) = device_pages.flavor("nvme").items()
    os_acc = f"os-acc --config-file {NOVA}"
    (provider,) = json.loads(run(f"{os_acc} provider list -f json"))
    assert (key, amount) == (f"resources:{provider['Resource Class']}", "1")
    instance = "7e6f2a52-4d0c-4cda-a1a3-000000000001"
    plug = f"{os_acc} plug --instance {instance} --provider {provider['UUID']}"
    (entry,) = json.loads(run(f"{plug} --property {key}={amount} -f json"))
    assert (entry["PCI ID"], sysfs.driver(drive)) == (drive, "vfio-pci")
    run(f"{os_acc} unplug {instance}")
    run(f"{os_acc} device erase {drive} --wait")
    assert sysfs.driver(drive) == before
    assert not holds_data("drive1")
    (device,) = json.loads(run(f"{os_acc} device list -f json"))
    assert device["State"] == "free"
