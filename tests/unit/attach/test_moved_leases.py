# SPDX-License-Identifier: Apache-2.0

"""Erasures of drives that a reboot has moved to the addresses of other leases."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.attach import operations
from os_acc.objects.pci import PciAddress
from os_acc.privsep import record
from os_acc.testing import HostSpec, TestHost, hosts

DRIVE, OTHER = "0000:41:00.0", "0000:42:00.0"
DATA = b"data of a guest." * 100
EVERY = json.dumps({"address": "*:*:*.*", "prebound": True})


@pytest.fixture
def host(tmp_path: Path) -> Iterator[TestHost]:
    drives = (hosts.nvme_disk("0000:41", 1), hosts.nvme_disk("0000:42", 2))
    with TestHost(tmp_path, HostSpec(drives), device_spec=[EVERY]) as host:
        yield host


def erase(host: TestHost) -> None:
    for attempt in host.manager.retrier.continue_erasures():
        attempt.result(60)


def check_free(host: TestHost) -> None:
    assert not host.manager.store.leases()
    assert not record.claimed()


def plug(host: TestHost, number: int, address: str) -> None:
    host.plug(number, address)
    host.kernel.write_medium(address, 1, DATA)


def reboot(host: TestHost, moved: dict[str, str], prebound: tuple[str, ...]) -> None:
    host.kernel.reboot(moved)
    for address in prebound:
        host.bind(address, "vfio-pci")
    host.restart()


def test_two_drives_that_have_changed_places_are_both_erased(host: TestHost) -> None:
    plug(host, 1, DRIVE)
    plug(host, 2, OTHER)
    host.unplug(1)
    host.unplug(2)
    reboot(host, {DRIVE: OTHER, OTHER: DRIVE}, ())
    for _ in range(2):
        erase(host)
    for address in (DRIVE, OTHER):
        assert DATA not in host.kernel.read_medium(address, 1)
    check_free(host)


def test_an_erasure_follows_a_drive_that_showed_no_serial_number_at_its_plug(
    host: TestHost,
) -> None:
    host.bind(DRIVE, "vfio-pci")
    plug(host, 1, DRIVE)
    host.unplug(1)
    reboot(host, {DRIVE: OTHER, OTHER: DRIVE}, ())
    erase(host)
    assert DATA not in host.kernel.read_medium(OTHER, 1)
    check_free(host)


def test_the_moved_drive_of_an_instance_is_not_released(host: TestHost) -> None:
    plug(host, 1, DRIVE)
    reboot(host, {DRIVE: OTHER, OTHER: DRIVE}, ())
    with pytest.raises(exception.Conflict, match=f"instance-1.*{DRIVE}"):
        operations.release_device(host.manager, PciAddress.parse(OTHER), None)
    assert host.kernel.read_medium(OTHER, 1).startswith(DATA)
