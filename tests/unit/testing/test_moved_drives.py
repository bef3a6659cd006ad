# SPDX-License-Identifier: Apache-2.0

"""Simulated NVMe drives that a reboot renumbers, and that keep their data."""

import dataclasses
import errno
import os
from pathlib import Path

import pytest

from os_acc.objects.pci import PciAddress
from os_acc.privsep.nvme import survey
from os_acc.testing import FakeKernel, HostSpec, hosts
from os_acc.testing.device_specs import NvmeSpec

FIRST, SECOND, THIRD = (f"0000:{bus}:00.0" for bus in ("41", "42", "43"))


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    drives = (hosts.nvme_disk("0000:41", 1), hosts.nvme_disk("0000:42", 2))
    return FakeKernel.build(tmp_path, HostSpec(drives))


def test_a_drive_that_moves_keeps_its_data_and_its_serial_number(kernel):
    kernel.write_medium(FIRST, 1, b"first")
    kernel.write_medium(SECOND, 1, b"second")
    kernel.reboot({FIRST: SECOND, SECOND: THIRD})
    assert kernel.read_medium(SECOND, 1).startswith(b"first")
    assert kernel.read_medium(THIRD, 1).startswith(b"second")
    with kernel.installed():
        queue = survey.wait_for_queue(PciAddress.parse(SECOND))
        assert queue._identify(1)[4:24] == b"S64HNE0R500001".ljust(20)
    with pytest.raises(OSError, match=str(FIRST)):
        kernel.state(FIRST)


def test_two_drives_cannot_have_one_address(kernel):
    with pytest.raises(OSError, match=os.strerror(errno.EEXIST)):
        kernel.reboot({FIRST: SECOND})
    assert kernel.state(FIRST).driver == "nvme"


def test_the_driver_shows_the_serial_number_that_the_controller_reports(kernel):
    old = kernel.hot_unplug(FIRST)
    kernel.hot_plug(dataclasses.replace(old, nvme=NvmeSpec(serial="other")))
    attribute = Path(kernel.path("sys/class/nvme/nvme1/serial"))
    assert attribute.read_text() == f"{'other':<20}\n"
    assert kernel.read_medium(FIRST, 1) == bytes(1 << 16)
