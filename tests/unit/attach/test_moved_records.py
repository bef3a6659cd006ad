# SPDX-License-Identifier: Apache-2.0

"""An operator's release of drives that a reboot or a hot plug has moved.

Without ``--force``, each drive is erased once, and no lease waits for another one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.attach import operations
from os_acc.objects.pci import PciAddress
from os_acc.privsep import outstanding, record
from os_acc.testing import HostSpec, TestHost, hosts

DRIVE, OTHER, FREE = "0000:41:00.0", "0000:42:00.0", "0000:43:00.0"
DATA = b"data of a guest." * 100
EVERY = json.dumps({"address": "*:*:*.*", "prebound": True})


@pytest.fixture
def host(tmp_path: Path) -> Iterator[TestHost]:
    drives = (hosts.nvme_disk("0000:41", 1), hosts.nvme_disk("0000:42", 2))
    with TestHost(tmp_path, HostSpec(drives), device_spec=[EVERY]) as host:
        yield host


def release(host: TestHost, address: str, driver: str | None = None) -> None:
    operations.release_device(host.manager, PciAddress.parse(address), driver)


def erase(host: TestHost) -> None:
    for attempt in host.manager.retrier.continue_erasures():
        attempt.result(60)


def check_free(host: TestHost) -> None:
    """Check that no lease and no record is left."""
    assert not host.manager.store.leases()
    assert not record.claimed()


def lose_store(host: TestHost) -> None:
    Path(host.state_path, "os_acc.sqlite").unlink()


def test_a_drive_that_first_showed_no_serial_number_is_erased_once(
    host: TestHost,
) -> None:
    host.bind(DRIVE, "vfio-pci")
    release(host, DRIVE, "vfio-pci")
    host.kernel.reboot()
    host.restart()
    erase(host)
    check_free(host)


def test_the_record_of_a_drive_does_not_claim_the_one_that_replaces_it(
    host: TestHost,
) -> None:
    host.plug(1, DRIVE)
    host.kernel.write_medium(DRIVE, 1, DATA)
    host.unplug(1)
    for address in (DRIVE, OTHER):
        host.kernel.hot_unplug(address)
    host.kernel.hot_plug(hosts.nvme_disk("0000:43", 1))
    host.kernel.hot_plug(hosts.nvme_disk("0000:41", 2))
    host.restart()
    erase(host)
    check_free(host)
    assert DATA not in host.kernel.read_medium(FREE, 1)
    host.plug(2, DRIVE)


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_prebound_drive_of_a_lost_store_is_erased(
    host: TestHost, is_moved: bool
) -> None:
    host.plug(1, DRIVE)
    host.kernel.write_medium(DRIVE, 1, DATA)
    lose_store(host)
    host.kernel.reboot({DRIVE: OTHER, OTHER: DRIVE} if is_moved else {})
    place = OTHER if is_moved else DRIVE
    host.bind(DRIVE, "vfio-pci")
    host.bind(OTHER, "vfio-pci")
    host.restart()
    release(host, place, "vfio-pci")
    erase(host)
    assert DATA not in host.kernel.read_medium(place, 1)
    check_free(host)


def test_no_drive_is_taken_from_an_instance_that_a_reboot_has_moved(
    host: TestHost,
) -> None:
    host.plug(1, DRIVE)
    host.kernel.write_medium(DRIVE, 1, DATA)
    host.kernel.reboot({DRIVE: OTHER, OTHER: DRIVE})
    host.bind(DRIVE, "vfio-pci")
    host.bind(OTHER, "vfio-pci")
    host.restart()
    with pytest.raises(exception.Conflict, match="may be the device of instance"):
        release(host, OTHER, "vfio-pci")
    assert host.kernel.read_medium(OTHER, 1).startswith(DATA)


def test_a_damaged_copy_of_a_drive_that_is_gone_keeps_no_other_drive(
    host: TestHost,
) -> None:
    """The others show serial numbers, and the copy has the name of another one."""
    host.plug(1, DRIVE)
    (copy,) = Path(host.kernel.path(outstanding.DIRECTORY)).iterdir()
    host.kernel.hot_unplug(DRIVE)
    lose_store(host)
    host.kernel.reboot()
    copy.write_text("rubbish\n")
    host.restart()
    check_free(host)
    host.plug(2, OTHER)


def test_a_damaged_copy_keeps_the_drives_that_it_may_be_about(host: TestHost) -> None:
    host.plug(1, DRIVE)
    (copy,) = Path(host.kernel.path(outstanding.DIRECTORY)).iterdir()
    lose_store(host)
    host.kernel.reboot()
    copy.write_text("rubbish\n")
    assert [each[:2] for each in record.claimed()] == [
        (PciAddress.parse(DRIVE).parts, record.UNREADABLE)
    ]
    host.bind(DRIVE, "vfio-pci")
    assert [each[:2] for each in record.claimed()] == [
        (PciAddress.parse(DRIVE).parts, record.UNREADABLE)
    ]
