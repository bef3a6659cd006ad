# SPDX-License-Identifier: Apache-2.0

"""NVMe drives that a reboot moves: each guest gets its own data, or nothing.

``tests/stress/test_drive_histories.py`` has the histories of moved drives.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.attach import operations
from os_acc.objects.lease import LeaseState
from os_acc.objects.pci import PciAddress
from os_acc.testing import HostSpec, TestHost, hosts, instance, uuid_of

PLACES = tuple(f"0000:{bus}:00.0" for bus in ("41", "42", "43", "44", "45"))
SHIFTED = dict(itertools.pairwise(PLACES))
PREBOUND = [json.dumps({"address": "*:*:*.*", "prebound": "true"})]
GUESTS = (1, 2, 3, 4)


def data_of(guest: int) -> bytes:
    return b"data of guest %d." % guest * 100


@pytest.fixture
def host(tmp_path: Path) -> Iterator[TestHost]:
    """Return a host with four equal drives, each with the data of its guest."""
    drives = [
        hosts.nvme_disk(place.rpartition(":")[0], number)
        for number, place in enumerate(PLACES[:-1], 1)
    ]
    with TestHost(tmp_path, HostSpec(tuple(drives))) as host:
        for guest, place in zip(GUESTS, PLACES, strict=False):
            host.plug(guest, place)
            host.kernel.write_medium(place, 1, data_of(guest))
        yield host


def reboot(host: TestHost, *, shifted: bool = True, is_lost: bool = False) -> None:
    if is_lost:
        for each in Path(host.state_path).glob("os_acc.sqlite*"):
            each.unlink()
    host.kernel.reboot(SHIFTED if shifted else {})
    host.restart()


def start_again(host: TestHost, guest: int) -> str:
    """Start a guest after a reboot; return the address of its drive."""
    host.manager.plug(instance(guest), None, {})
    (place,) = host.plugged(guest)
    return place


def advance(host: TestHost) -> None:
    for _each in GUESTS:
        for attempt in host.manager.retrier.continue_erasures():
            attempt.exception(60)


def data_at(host: TestHost, place: str) -> list[int]:
    """Return the guests whose data a drive has."""
    medium = host.kernel.read_medium(place, 1)
    return [each for each in GUESTS if data_of(each) in medium]


def check_new_guests(host: TestHost) -> None:
    """Check that no new guest gets a drive with the data of another one."""
    for number in range(10, 20):
        if not host.manager.providers():
            return
        try:
            (entry,) = host.plug(number)
        except (exception.NoDeviceAvailable, exception.HostError):
            return
        address = entry["attach_handle_info"]
        place = "{domain}:{bus}:{device}.{function}".format(**address)
        assert data_at(host, place) == []


def test_a_lost_store_and_a_disabled_plugin_lose_no_erasure(host: TestHost) -> None:
    host.options["enabled_plugins"] = ["pci"]
    host.options["device_spec"] = [
        json.dumps({"address": "*:*:*.*", "allow_no_erase": "true"})
    ]
    reboot(host, is_lost=True)
    check_new_guests(host)
    for place, guest in zip(PLACES[1:], GUESTS, strict=True):
        assert data_at(host, place) == [guest]


def test_a_drive_that_moved_is_not_adopted_beside_its_lease(host: TestHost) -> None:
    reboot(host)
    for guest, place in zip(GUESTS, PLACES[1:], strict=True):
        with pytest.raises(exception.Conflict):
            operations.adopt_device(
                host.manager, PciAddress.parse(place), uuid_of(guest), "nvme"
            )
        host.unplug(guest)
    advance(host)
    assert host.manager.store.leases() == ()


def test_a_guest_gets_its_own_drive_again_after_a_reboot(host: TestHost) -> None:
    reboot(host, shifted=False)
    for guest, place in zip(GUESTS, PLACES, strict=False):
        assert start_again(host, guest) == place
        assert data_at(host, place) == [guest]
    check_new_guests(host)


def test_prebound_drives_in_place_start_again(host: TestHost) -> None:
    host.options["device_spec"] = PREBOUND
    reboot(host, shifted=False)
    for place in PLACES[:4]:
        host.bind(place, "vfio-pci")
    for guest, place in zip(GUESTS, PLACES, strict=False):
        assert start_again(host, guest) == place
        assert data_at(host, place) == [guest]


def test_an_erasure_goes_on_after_a_reboot_that_moves_its_drive(
    host: TestHost,
) -> None:
    host.unplug(4)
    reboot(host)
    (lease,) = [each for each in host.manager.store.leases() if each.erasure]
    assert lease.state is LeaseState.ERASING
    advance(host)
    assert data_at(host, PLACES[4]) == []
    assert data_at(host, PLACES[3]) == [3]
