# SPDX-License-Identifier: Apache-2.0

"""The quick start of the manual on a real host, followed word for word.

From an empty host to a guest of QEMU that has a device, and back. The package of this
environment replaces the one that the page installs, and the address of a device
of this machine the one on the page.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import quickstart

from . import sysfs
from .machine import Machine

pytestmark = pytest.mark.family("Any other PCI function")

BINARIES = Path(sys.executable).parent
#: The files that the page makes; those of other tests are gone, too.
CONFIGURATION, STATE = Path("/etc/os-acc"), Path("/var/lib/os_acc")
MODULES = Path("/etc/modules-load.d/vfio-pci.conf")
#: Software emulation starts a helper slowly.
PATIENCE = "[os_acc]\ninitialize_timeout = 300\nhelper_start_timeout = 240\n"


@pytest.fixture
def empty_host() -> Iterator[None]:
    """Let the host be without os_acc before and after the test."""

    def clear() -> None:
        for each in (CONFIGURATION, STATE):
            shutil.rmtree(each, ignore_errors=True)
        MODULES.unlink(missing_ok=True)

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
