# SPDX-License-Identifier: Apache-2.0

"""The last snapshot is served at once; a thread scans the host again."""

import _thread
import threading

import pytest

from os_acc import deadlines, exception
from os_acc.inventory import snapshots
from os_acc.objects.lease import LeaseState
from os_acc.objects.records import RecordedState
from tests.unit.placement.capacity_examples import CLASS, handle, lease, provider

ONE, TWO = handle(1), handle(2)
BEFORE, AFTER = provider(1, ONE), provider(1, ONE, TWO)
QUARANTINED = lease(BEFORE.uuid, ONE, LeaseState.QUARANTINED)


def never():
    raise AssertionError("nobody looks")


@pytest.fixture
def fresh(monkeypatch):
    """Let no snapshot expire."""
    monkeypatch.setattr(snapshots, "MAX_AGE", 10_000.0)


@pytest.fixture
def old(monkeypatch):
    """Let every snapshot expire at once."""
    monkeypatch.setattr(snapshots, "MAX_AGE", -1.0)


@pytest.fixture
def ended(monkeypatch):
    """Return a function that waits for the scans that have begun."""
    answers, begin = [], deadlines.begin

    def remembered(*args):
        answers.append(begin(*args))
        return answers[-1]

    def wait():
        for each in answers:
            each.result(60)
        return len(answers)

    monkeypatch.setattr(deadlines, "begin", remembered)
    return wait


def units(found):
    """Return (total, reserved) of the only provider; None if nothing is known."""
    for each in found.newest():
        return each.units[CLASS].total, each.units[CLASS].reserved
    return None


@pytest.mark.usefixtures("fresh")
def test_what_was_noted_last_is_served():
    found = snapshots.Snapshots(never)
    found.note(found.begin(), RecordedState(), [BEFORE])
    assert units(found) == (1, 0)
    found.note(found.begin(), RecordedState(), [AFTER])
    assert units(found) == (2, 0)


@pytest.mark.usefixtures("fresh")
def test_a_reading_of_the_store_keeps_what_was_seen_of_the_host():
    found = snapshots.Snapshots(never)
    found.note(found.begin(), RecordedState(), [AFTER])
    found.note(found.begin(), RecordedState((QUARANTINED,)))
    assert units(found) == (2, 1)


@pytest.mark.usefixtures("fresh")
def test_a_look_that_ends_late_replaces_nothing_newer():
    found = snapshots.Snapshots(never)
    slow, quick = found.begin(), found.begin()
    found.note(quick, RecordedState(), [AFTER])
    found.note(slow, RecordedState((QUARANTINED,)), [BEFORE])
    assert units(found) == (2, 0)


@pytest.mark.usefixtures("fresh")
def test_a_late_look_is_newer_where_only_the_store_was_read_meanwhile():
    found = snapshots.Snapshots(never)
    found.note(found.begin(), RecordedState(), [BEFORE])
    slow, quick = found.begin(), found.begin()
    found.note(quick, RecordedState((QUARANTINED,)))
    found.note(slow, RecordedState(), [AFTER])
    assert units(found) == (2, 1)


def test_what_is_old_is_served_and_looked_at_again(old, ended):
    found = snapshots.Snapshots(
        lambda: found.note(found.begin(), RecordedState(), [AFTER])
    )
    found.note(found.begin(), RecordedState(), [BEFORE])
    assert units(found) in {(1, 0), (2, 0)}
    assert ended() == 1
    assert units(found) == (2, 0)


def test_what_has_expired_is_looked_at_once(fresh, ended):
    found = snapshots.Snapshots(
        lambda: found.note(found.begin(), RecordedState(), [AFTER])
    )
    found.note(found.begin(), RecordedState(), [BEFORE])
    found.newest()
    assert ended() == 0
    found.expire()
    found.newest()
    assert ended() == 1
    found.newest()
    assert ended() == 1


def test_a_look_that_hangs_is_the_only_one(old, ended):
    gate = threading.Event()
    found = snapshots.Snapshots(gate.wait)
    found.note(found.begin(), RecordedState(), [BEFORE])
    asked = [threading.Thread(target=found.newest) for _ in range(3)]
    try:
        for each in asked:
            each.start()
            each.join(60)
            assert not each.is_alive()
        assert units(found) == (1, 0)
    finally:
        gate.set()
    assert ended() == 1
    found.newest()
    assert ended() == 2


@pytest.mark.parametrize(
    "failure",
    [
        exception.HostStepFailed("no /sys here", reason=exception.StepReason.REFUSED),
        OSError("no /sys here"),
    ],
)
def test_a_look_that_fails_leaves_what_was_seen(old, ended, caplog, failure):
    def look():
        raise failure

    found = snapshots.Snapshots(look)
    found.note(found.begin(), RecordedState(), [BEFORE])
    assert units(found) == (1, 0)
    assert ended() == 1
    assert "no /sys here" in caplog.text
    found.newest()
    assert ended() == 2


def test_without_a_thread_to_look_what_was_seen_is_served(old, monkeypatch, caplog):
    def start(*_arguments):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", start)
    found = snapshots.Snapshots(never)
    found.note(found.begin(), RecordedState(), [BEFORE])
    assert [units(found) for _ in range(2)] == [(1, 0)] * 2
    assert len(caplog.messages) == 2
    assert "can't start new thread" in caplog.text


def test_what_was_seen_says_whether_leased_devices_are_there(fresh):
    found = snapshots.Snapshots(never)
    assert not found.offers([lease("", ONE)])
    found.note(found.begin(), RecordedState(), [BEFORE])
    assert found.offers([lease("", ONE)])
    assert not found.offers([lease("", ONE), lease("", TWO)])
    assert not found.offers([lease("", handle(1, functions=2))])


def test_a_device_has_the_provider_that_the_last_scan_offers_it_with():
    found = snapshots.Snapshots(never)
    assert found.provider_of(ONE.address) == ""
    found.note(1, RecordedState(), [BEFORE])
    assert found.provider_of(ONE.address) == BEFORE.uuid
    assert found.provider_of(TWO.address) == ""
