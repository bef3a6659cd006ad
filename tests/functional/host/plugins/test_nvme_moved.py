# SPDX-License-Identifier: Apache-2.0

"""NVMe drives that a reboot moves: each guest gets its own data, or nothing."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.objects.lease import LeaseState
from os_acc.objects.pci import PciAddress
from os_acc.privsep import kernel
from os_acc.testing import HostSpec, TestHost, hosts, instance
from tests.functional.host.operator_commands import adopt, release

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


def reboot(
    host: TestHost, *, shifted: bool = True, lost: str = "", updated: bool = False
) -> None:
    """Boot again; ``lost`` is the part of the store that has gone meanwhile.

    :param updated: whether a new firmware of the drives has another revision.
    """
    file = Path(host.state_path, "os_acc.sqlite")
    if lost == "header":
        content = bytearray(file.read_bytes())
        content[16] ^= 1
        file.write_bytes(content)
    elif lost:
        for each in file.parent.glob("os_acc.sqlite*"):
            each.unlink()
    host.kernel.reboot(SHIFTED if shifted else {})
    for place in PLACES[shifted:][:4] if updated else ():
        function = Path(host.root, "sys/bus/pci/devices", place)
        (function / "revision").write_text("0x07\n")
    host.restart()


def start_again(host: TestHost, guest: int) -> str:
    """Start a guest after a reboot; return the address of its drive."""
    host.manager.plug(instance(guest), None, {})
    (place,) = host.plugged(guest)
    return place


def advance(host: TestHost, rounds: int = len(GUESTS)) -> None:
    for _each in range(rounds):
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


def test_no_guest_starts_with_the_data_of_another_one(host):
    reboot(host)
    for guest in GUESTS:
        with pytest.raises((exception.DeviceChanged, exception.DeviceGone)):
            start_again(host, guest)
    for place, guest in zip(PLACES[1:], GUESTS, strict=True):
        assert data_at(host, place) == [guest]
    check_new_guests(host)


@pytest.mark.parametrize(
    ("shifted", "updated"), [(True, False), (True, True), (False, True)]
)
def test_the_erasure_follows_each_drive_to_its_new_address(host, shifted, updated):
    host.unplug(4)
    reboot(host, shifted=shifted, updated=updated)
    check_new_guests(host)
    for guest in GUESTS[:3]:
        assert host.unplug(guest) == 1
    check_new_guests(host)
    advance(host)
    assert host.manager.store.leases() == ()
    for place in PLACES[shifted:][:4]:
        assert data_at(host, place) == []
    for number, place in enumerate(PLACES[shifted:][:4], 30):
        host.plug(number, place)


@pytest.mark.parametrize("lost", ["header", "everything"])
@pytest.mark.parametrize("shifted", [False, True], ids=["in place", "moved"])
@pytest.mark.parametrize("updated", [False, True])
def test_a_lost_store_and_a_reboot_lose_no_erasure(host, lost, shifted, updated):
    reboot(host, shifted=shifted, lost=lost, updated=updated)
    check_new_guests(host)
    for place, guest in zip(PLACES[shifted:], GUESTS, strict=False):
        assert data_at(host, place) == [guest]
    for place in PLACES[shifted:][:4]:
        if host.manager.store.lease_of(PciAddress.parse(place)) is None:
            release(host, place)
    for guest in GUESTS:
        host.unplug(guest)
    advance(host)
    for place in PLACES[shifted:][:4]:
        assert data_at(host, place) == []
    assert host.manager.store.leases() == ()
    for number, place in enumerate(PLACES[shifted:][:4], 30):
        host.plug(number, place)


def test_damaged_copies_of_the_former_ids_end_with_the_erasure(host):
    copies = Path(host.root, kernel.COPIES)
    for each in copies.iterdir():
        each.write_text("rubbish")
    reboot(host, lost="everything", updated=True)
    check_new_guests(host)
    for place, guest in zip(PLACES[1:], GUESTS, strict=True):
        assert data_at(host, place) == [guest]
        release(host, place, "nvme")
    advance(host)
    assert not list(copies.iterdir())
    for number, place in enumerate(PLACES[1:], 30):
        assert data_at(host, place) == []
        host.plug(number, place)


def test_a_restored_host_without_its_store_erases_nothing_by_itself(host):
    host.unplug(1)
    copies = Path(host.root, kernel.COPIES)
    backup = {each.name: each.read_bytes() for each in copies.iterdir()}
    advance(host)
    host.plug(11, PLACES[0])
    host.kernel.write_medium(PLACES[0], 1, data_of(1))
    host.unplug(4)
    for name, content in backup.items():
        (copies / name).write_bytes(content)
    reboot(host, shifted=False, lost="everything")
    advance(host)
    check_new_guests(host)
    for guest, place in zip((11, 2, 3), PLACES, strict=False):
        adopt(host, place, number=guest)
        assert start_again(host, guest) == place
    release(host, PLACES[3])
    advance(host)
    assert [data_at(host, each) for each in PLACES[:4]] == [[1], [2], [3], []]


def test_a_lost_store_and_a_disabled_plugin_lose_no_erasure(host):
    host.options["enabled_plugins"] = ["pci"]
    host.options["device_spec"] = [
        json.dumps({"address": "*:*:*.*", "allow_no_erase": "true"})
    ]
    reboot(host, lost="everything")
    check_new_guests(host)
    for place, guest in zip(PLACES[1:], GUESTS, strict=True):
        assert data_at(host, place) == [guest]


def test_a_drive_that_moved_is_not_adopted_beside_its_lease(host):
    reboot(host)
    for guest, place in zip(GUESTS, PLACES[1:], strict=True):
        with pytest.raises(exception.Conflict):
            adopt(host, place, "nvme", number=guest)
        host.unplug(guest)
    advance(host)
    assert host.manager.store.leases() == ()


@pytest.mark.parametrize("how", ["adopt", "release"])
def test_a_hidden_drive_keeps_its_erasure_without_the_plugin(host, how):
    """Neither its lease nor its serial number is left, and pci alone is enabled."""
    host.options["device_spec"] = PREBOUND
    reboot(host, shifted=False, lost="everything")
    host.kernel.reboot({})
    host.bind(PLACES[0], "vfio-pci")
    host.options["enabled_plugins"] = ["pci"]
    host.restart()
    if how == "adopt":
        adopt(host, PLACES[0])
        with pytest.raises(exception.DevicesUnreleased):
            host.unplug(1)
    else:
        with pytest.raises(exception.OsAccError):
            release(host, PLACES[0], "nvme")
    host.options["enabled_plugins"] = ["nvme", "pci"]
    host.restart()
    check_new_guests(host)
    assert data_at(host, PLACES[0]) == [1]
    release(host, PLACES[0])
    advance(host)
    assert data_at(host, PLACES[0]) == []


@pytest.mark.parametrize("updated", [False, True])
def test_a_guest_gets_its_own_drive_again_after_a_reboot(host, updated):
    reboot(host, shifted=False, updated=updated)
    for guest, place in zip(GUESTS, PLACES, strict=False):
        assert start_again(host, guest) == place
        assert data_at(host, place) == [guest]
    check_new_guests(host)


@pytest.mark.parametrize("lost", ["", "everything"])
def test_prebound_drives_that_moved_are_told_apart(tmp_path, host, lost):
    """Nothing shows the serial number of a drive on vfio-pci."""
    host.options["device_spec"] = PREBOUND
    reboot(host, lost=lost)
    for place in PLACES[1:]:
        host.bind(place, "vfio-pci")
    host.restart()
    for guest in GUESTS:
        with pytest.raises(exception.OsAccError):
            start_again(host, guest)
    check_new_guests(host)
    for place, guest in zip(PLACES[1:], GUESTS, strict=True):
        assert data_at(host, place) == [guest]


def test_prebound_drives_in_place_start_again(host):
    host.options["device_spec"] = PREBOUND
    reboot(host, shifted=False)
    for place in PLACES[:4]:
        host.bind(place, "vfio-pci")
    for guest, place in zip(GUESTS, PLACES, strict=False):
        assert start_again(host, guest) == place
        assert data_at(host, place) == [guest]


def test_an_erasure_goes_on_after_a_reboot_that_moves_its_drive(host):
    host.unplug(4)
    reboot(host)
    (lease,) = [each for each in host.manager.store.leases() if each.erasure]
    assert lease.state is LeaseState.ERASING
    advance(host)
    assert data_at(host, PLACES[4]) == []
    assert data_at(host, PLACES[3]) == [3]
