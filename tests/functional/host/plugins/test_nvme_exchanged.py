# SPDX-License-Identifier: Apache-2.0

"""NVMe drives that change slots: records of the former slot, and of unknown numbers.

A kill, or a call that holds the lock of a slot, leaves one of several records.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.privsep import claims, kernel, record
from os_acc.testing import HostSpec, TestHost, hosts, instance
from tests.functional.host.operator_commands import adopt, release
from tests.functional.host.plugins.test_nvme_moved import (
    PLACES,
    PREBOUND,
    advance,
    data_at,
    data_of,
    reboot,
    start_again,
)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[TestHost]:
    """Return a host with two equal drives, each with data."""
    drives = [
        hosts.nvme_disk(place.rpartition(":")[0], number)
        for number, place in enumerate(PLACES[:2], 1)
    ]
    with TestHost(tmp_path, HostSpec(tuple(drives))) as host:
        for guest, place in enumerate(PLACES[:2], 1):
            host.kernel.write_medium(place, 1, data_of(guest))
        yield host


@pytest.fixture
def hidden(two: TestHost) -> TestHost:
    """Return a host whose second drive hides its serial number."""
    # A guest of another program had it.
    two.bind(PLACES[1], "vfio-pci")
    return two


def test_no_other_drive_is_erased_for_a_hidden_one_that_a_reboot_moves(hidden):
    hidden.kernel.kill(PLACES[1], "unbind")
    with pytest.raises(exception.HelperLost):
        release(hidden, PLACES[1], "nvme")
    hidden.kernel.lift()
    reboot(hidden)
    advance(hidden)
    with pytest.raises(exception.DeviceChanged, match="before the reboot"):
        release(hidden, PLACES[1])
    assert data_at(hidden, PLACES[1]) == [1]
    release(hidden, PLACES[1], force=True)
    assert hidden.manager.store.leases() == ()


@contextlib.contextmanager
def locked(host: TestHost, place: str) -> Iterator[None]:
    """Hold the lock of a slot, as a call that reads the health of a drive there."""
    with Path(host.root, kernel.LOCKS, place).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def without_record(host: TestHost, place: str) -> Iterator[None]:
    """Let each write of a slot's record fail, after that of its copy."""
    obstacle = Path(host.root, kernel.LOCKS, f"{place}.lease.new")
    obstacle.mkdir()
    yield
    obstacle.rmdir()


def move(host: TestHost, *places: str) -> None:
    """Move the drive in each slot to the next one of them, within a boot."""
    drives = [host.kernel.hot_unplug(place) for place in places[:-1]]
    for drive, place in zip(drives, places[1:], strict=True):
        host.kernel.hot_plug(dataclasses.replace(drive, address=place))


def check_the_data_of_the_next_guest_is_erased(host: TestHost, place: str) -> None:
    """Give a drive, which is on vfio-pci already, to a guest, and take it back."""
    host.options["device_spec"] = PREBOUND
    host.bind(place, "vfio-pci")
    host.restart()
    host.plug(3, place)
    host.kernel.write_medium(place, 1, data_of(3))
    host.unplug(3)
    advance(host)
    assert data_at(host, place) == []
    host.plug(4, place)
    assert host.plugged(4) == [place]


def put_in_another(host: TestHost) -> None:
    """Put another drive, with data, into the slot that the hidden drive has left."""
    host.kernel.hot_plug(hosts.nvme_disk(PLACES[1].rpartition(":")[0], 7))
    host.kernel.write_medium(PLACES[1], 1, data_of(3))


def leave_record(host: TestHost, now: str, there: str = "") -> None:
    """Erase a drive that has left the second slot, while another call locks that.

    :param there: the driver of another drive, put into that slot; '': it stays empty.
    """
    host.kernel.hot_unplug(PLACES[0])
    host.plug(1, PLACES[1])
    host.manager.unplug(instance(1))
    move(host, PLACES[1], now)
    with locked(host, PLACES[1]):
        advance(host)
    assert host.manager.store.leases() == claims.claimed() == ()
    if there:
        put_in_another(host)
        host.bind(PLACES[1], there)
        host.restart()


@pytest.mark.parametrize("now", [PLACES[0], PLACES[2]])
@pytest.mark.parametrize("there", ["", "vfio-pci"])
def test_the_record_of_a_locked_slot_ends_no_later_erasure(two, there, now):
    leave_record(two, now, there)
    check_the_data_of_the_next_guest_is_erased(two, now)


def test_a_drive_that_returns_to_a_slot_with_a_record_is_erased(two):
    leave_record(two, PLACES[2])
    two.restart()
    two.plug(2, PLACES[2])
    two.kernel.write_medium(PLACES[2], 1, data_of(2))
    two.manager.unplug(instance(2))
    two.kernel.kill(PLACES[2], "format")
    advance(two, rounds=1)
    two.kernel.lift()
    move(two, PLACES[2], PLACES[1])
    advance(two)
    assert data_at(two, PLACES[1]) == []
    assert two.manager.store.leases() == claims.claimed() == ()
    two.plug(3, PLACES[1])


def test_an_operators_release_of_a_left_slot_takes_nothing_from_a_guest(two):
    leave_record(two, PLACES[2], "vfio-pci")
    two.plug(2, PLACES[2])
    two.kernel.write_medium(PLACES[2], 1, data_of(2))
    with pytest.raises(exception.InvalidInput, match="not recorded"):
        release(two, PLACES[1])
    two.unplug(2)
    advance(two)
    assert [data_at(two, place) for place in PLACES[1:3]] == [[3], []]


def test_a_damaged_record_beside_that_of_a_left_slot_ends_no_erasure(two):
    leave_record(two, PLACES[2], "vfio-pci")
    two.plug(2, PLACES[2])
    two.kernel.write_medium(PLACES[2], 1, data_of(2))
    Path(two.root, kernel.LOCKS, f"{PLACES[2]}.lease").write_text("rubbish")
    two.manager.unplug(instance(2))
    advance(two)
    assert data_at(two, PLACES[2]) == []


@pytest.mark.parametrize("now", [PLACES[0], PLACES[2]])
def test_a_lease_with_two_records_stays_with_its_drive(two, now):
    two.kernel.hot_unplug(PLACES[0])
    two.plug(2, PLACES[1])
    two.manager.unplug(instance(2))
    move(two, PLACES[1], now)
    two.kernel.kill(now, "format")
    with locked(two, PLACES[1]):
        advance(two, rounds=1)
    two.kernel.lift()
    put_in_another(two)
    two.bind(PLACES[1], "vfio-pci")
    two.restart()
    advance(two)
    assert [data_at(two, place) for place in (PLACES[1], now)] == [[3], []]
    assert two.manager.store.leases() == ()


def test_the_records_of_two_drives_that_change_slots_end_no_later_erasure(two):
    for guest, place in enumerate(PLACES[:2], 1):
        two.plug(guest, place)
        two.kernel.write_medium(place, 1, data_of(guest))
        two.kernel.fail(place, "format")
        two.manager.unplug(instance(guest))
    advance(two)
    move(two, PLACES[0], PLACES[1], PLACES[0])
    advance(two)
    # The drive in the first slot is being erased meanwhile.
    with locked(two, PLACES[0]):
        release(two, PLACES[1])
    release(two, PLACES[0])
    assert [data_at(two, place) for place in PLACES[:2]] == [[], []]
    two.kernel.hot_unplug(PLACES[0])
    assert two.manager.store.leases() == claims.claimed() == ()
    check_the_data_of_the_next_guest_is_erased(two, PLACES[1])


def test_a_drive_with_data_stays_hidden_from_udev_in_the_slot_of_an_erased_one(two):
    for guest, place in enumerate(PLACES[:2], 1):
        two.plug(guest, place)
        two.kernel.fail(place, "format")
        two.manager.unplug(instance(guest))
    advance(two)
    move(two, PLACES[0], PLACES[1], PLACES[0])
    advance(two)
    two.kernel.fail(PLACES[0], "format")
    with pytest.raises(exception.HostStepFailed, match="EIO"):
        release(two, PLACES[0])
    release(two, PLACES[1])
    assert [data_at(two, place) for place in PLACES[:2]] == [[2], []]
    assert os.listdir(Path(two.root, record.MARKS)) == [PLACES[0]]
    release(two, PLACES[0])
    assert [data_at(two, place) for place in PLACES[:2]] == [[], []]
    assert two.manager.store.leases() == claims.claimed() == ()
    assert os.listdir(Path(two.root, record.MARKS)) == []


def interrupt(host: TestHost) -> None:
    """Kill the worker that begins to erase the hidden drive."""
    host.kernel.kill(PLACES[1], "unbind")
    advance(host, rounds=1)
    host.kernel.lift()


@pytest.fixture
def moved(hidden: TestHost) -> TestHost:
    """Return a host whose hidden drive is in another slot, and not erased yet.

    Only the copy of its record has its serial number.
    """
    release(hidden, PLACES[1], "vfio-pci")
    interrupt(hidden)
    with without_record(hidden, PLACES[1]):
        advance(hidden)
    move(hidden, PLACES[1], PLACES[2])
    return hidden


def test_a_drive_is_erased_elsewhere_if_only_the_copy_has_its_serial_number(moved):
    # The lease follows its drive, and the operator tries the failed erasure again.
    advance(moved)
    release(moved, PLACES[2])
    advance(moved)
    assert data_at(moved, PLACES[2]) == []
    put_in_another(moved)
    assert moved.manager.store.leases() == claims.claimed() == ()
    with pytest.raises(exception.NotFound):
        release(moved, PLACES[1])
    assert data_at(moved, PLACES[1]) == [3]


def test_no_other_drive_is_erased_if_only_the_copy_has_a_serial_number(moved):
    put_in_another(moved)
    advance(moved)
    with pytest.raises(exception.NotFound):
        release(moved, PLACES[1])
    advance(moved)
    assert data_at(moved, PLACES[1]) == [3]
    release(moved, PLACES[2])
    advance(moved)
    assert data_at(moved, PLACES[2]) == []
    assert moved.manager.store.leases() == claims.claimed() == ()


def test_a_copy_without_a_number_does_not_come_back(hidden, monkeypatch):
    hidden.options["device_spec"] = PREBOUND
    hidden.restart()
    adopt(hidden, PLACES[1], "vfio-pci", number=1)
    hidden.kernel.reboot({})
    hidden.bind(PLACES[1], "vfio-pci")
    hidden.restart()
    # The start of the guest reads the number; power is lost before the older copy goes.
    with monkeypatch.context() as patch:
        patch.setattr(record, "remove_copies", lambda *_arguments, **_named: None)
        start_again(hidden, 1)
    hidden.kernel.reboot(dict(itertools.pairwise(PLACES[:3])))
    hidden.restart()
    hidden.unplug(1)
    # The drive of the next guest is in the former slot.
    hidden.plug(2, PLACES[1])
    advance(hidden)
    hidden.kernel.reboot({})
    hidden.restart()
    start_again(hidden, 2)
    hidden.unplug(2)
    advance(hidden)
    assert hidden.manager.store.leases() == claims.claimed() == ()


def test_the_lease_of_an_older_store_follows_its_drive_away_from_another_one(two):
    two.plug(1, PLACES[0])
    two.manager.unplug(instance(1))
    store = Path(two.state_path, "os_acc.sqlite")
    old = store.read_bytes()
    advance(two)
    two.kernel.reboot(dict(zip(PLACES[:2], PLACES[1::-1], strict=True)))
    two.restart()
    two.plug(2, PLACES[0])
    store.write_bytes(old)
    two.restart()
    # On vfio-pci, the drive in the former slot shows no serial number.
    advance(two)
    assert two.manager.store.leases() == ()
    release(two, PLACES[0])
    advance(two)
    assert two.manager.store.leases() == claims.claimed() == ()


def lose_store(host: TestHost) -> None:
    for each in Path(host.state_path).glob("os_acc.sqlite*"):
        each.unlink()
    host.restart()


@pytest.mark.parametrize("lost", [False, True], ids=["", "lost"])
def test_a_lease_that_took_over_leaves_the_number_of_its_drive(hidden, lost):
    """The copy with the serial number is that of a second, or of a third lease."""
    release(hidden, PLACES[1], "vfio-pci")
    if lost:
        interrupt(hidden)
        lose_store(hidden)
    hidden.bind(PLACES[1], "nvme")
    with without_record(hidden, PLACES[1]):
        if lost:
            with pytest.raises(exception.OsAccError, match="EISDIR"):
                release(hidden, PLACES[1])
        else:
            advance(hidden)
    move(hidden, PLACES[1], PLACES[2])
    put_in_another(hidden)
    advance(hidden)
    with pytest.raises(exception.NotFound):
        release(hidden, PLACES[1])
    assert data_at(hidden, PLACES[1]) == [3]
    release(hidden, PLACES[2])
    advance(hidden)
    assert [data_at(hidden, place) for place in PLACES[1:3]] == [[3], []]
    assert hidden.manager.store.leases() == claims.claimed() == ()


@pytest.mark.parametrize("shifted", [False, True], ids=["in place", "moved"])
def test_the_copy_of_an_earlier_lease_does_not_come_back(hidden, shifted):
    release(hidden, PLACES[1], "vfio-pci")
    hidden.bind(PLACES[1], "nvme")
    # Power is lost when the lease of the erasure has just read the number.
    with without_record(hidden, PLACES[1]):
        advance(hidden)
    reboot(hidden, shifted=shifted)
    advance(hidden)
    place = PLACES[1 + shifted]
    release(hidden, place)
    advance(hidden)
    assert data_at(hidden, place) == []
    assert data_at(hidden, PLACES[shifted]) == [1]
    assert hidden.manager.store.leases() == claims.claimed() == ()


def test_an_erasure_waits_for_the_lock_of_a_record_without_a_number(moved):
    put_in_another(moved)
    advance(moved)
    with locked(moved, PLACES[1]), pytest.raises(exception.HostStepFailed, match="42"):
        release(moved, PLACES[2])
    advance(moved)
    assert [data_at(moved, place) for place in PLACES[1:3]] == [[3], []]
    with pytest.raises(exception.NotFound):
        release(moved, PLACES[1])
    assert moved.manager.store.leases() == claims.claimed() == ()
