# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""What was seen last is served at once; looking again is a thread's work."""

from __future__ import annotations

import _thread
import threading

import pytest

from os_acc import exception, unending
from os_acc.objects.lease import LeaseState, Standing
from os_acc.placement import snapshot
from tests.unit.placement.made import CLASS, handle, lease, provider

ONE, TWO = handle(1), handle(2)
BEFORE, AFTER = provider(1, ONE), provider(1, ONE, TWO)
QUARANTINED = lease(BEFORE.uuid, ONE, LeaseState.QUARANTINED)


def never():
    raise AssertionError("nobody looks")


@pytest.fixture
def fresh(monkeypatch):
    """Nothing becomes old by itself."""
    monkeypatch.setattr(snapshot, "MAX_AGE", 10_000.0)


@pytest.fixture
def old(monkeypatch):
    """Everything is old at once."""
    monkeypatch.setattr(snapshot, "MAX_AGE", -1.0)


@pytest.fixture
def ended(monkeypatch):
    """Wait until the looks that have begun are over."""
    answers, begin = [], unending.begin

    def remembered(*args):
        answers.append(begin(*args))
        return answers[-1]

    def wait():
        for each in answers:
            each.result(60)
        return len(answers)

    monkeypatch.setattr(unending, "begin", remembered)
    return wait


def units(snapshots):
    """(total, reserved) of the one provider; None where nothing is known."""
    for each in snapshots.newest():
        return each.units[CLASS].total, each.units[CLASS].reserved
    return None


@pytest.mark.usefixtures("fresh")
def test_what_was_noted_last_is_served():
    snapshots = snapshot.Snapshots(never)
    snapshots.note(snapshots.begin(), Standing(), [BEFORE])
    assert units(snapshots) == (1, 0)
    snapshots.note(snapshots.begin(), Standing(), [AFTER])
    assert units(snapshots) == (2, 0)


@pytest.mark.usefixtures("fresh")
def test_a_reading_of_the_store_keeps_what_was_seen_of_the_host():
    snapshots = snapshot.Snapshots(never)
    snapshots.note(snapshots.begin(), Standing(), [AFTER])
    snapshots.note(snapshots.begin(), Standing((QUARANTINED,)))
    assert units(snapshots) == (2, 1)


@pytest.mark.usefixtures("fresh")
def test_a_look_that_ends_late_replaces_nothing_newer():
    snapshots = snapshot.Snapshots(never)
    slow, quick = snapshots.begin(), snapshots.begin()
    snapshots.note(quick, Standing(), [AFTER])
    snapshots.note(slow, Standing((QUARANTINED,)), [BEFORE])
    assert units(snapshots) == (2, 0)


@pytest.mark.usefixtures("fresh")
def test_a_late_look_is_newer_where_only_the_store_was_read_meanwhile():
    snapshots = snapshot.Snapshots(never)
    snapshots.note(snapshots.begin(), Standing(), [BEFORE])
    slow, quick = snapshots.begin(), snapshots.begin()
    snapshots.note(quick, Standing((QUARANTINED,)))
    snapshots.note(slow, Standing(), [AFTER])
    assert units(snapshots) == (2, 1)


def test_what_is_old_is_served_and_looked_at_again(old, ended):
    snapshots = snapshot.Snapshots(
        lambda: snapshots.note(snapshots.begin(), Standing(), [AFTER])
    )
    snapshots.note(snapshots.begin(), Standing(), [BEFORE])
    assert units(snapshots) in {(1, 0), (2, 0)}
    assert ended() == 1
    assert units(snapshots) == (2, 0)


def test_what_has_expired_is_looked_at_once(fresh, ended):
    snapshots = snapshot.Snapshots(
        lambda: snapshots.note(snapshots.begin(), Standing(), [AFTER])
    )
    snapshots.note(snapshots.begin(), Standing(), [BEFORE])
    snapshots.newest()
    assert ended() == 0
    snapshots.expire()
    snapshots.newest()
    assert ended() == 1
    snapshots.newest()
    assert ended() == 1


def test_a_look_that_hangs_is_the_only_one(old, ended):
    gate = threading.Event()
    snapshots = snapshot.Snapshots(gate.wait)
    snapshots.note(snapshots.begin(), Standing(), [BEFORE])
    asked = [threading.Thread(target=snapshots.newest) for _ in range(3)]
    try:
        for each in asked:
            each.start()
            each.join(60)
            assert not each.is_alive()
        assert units(snapshots) == (1, 0)
    finally:
        gate.set()
    assert ended() == 1
    snapshots.newest()
    assert ended() == 2


@pytest.mark.parametrize(
    "failure", [exception.HostStepFailed("no /sys here"), OSError("no /sys here")]
)
def test_a_look_that_fails_leaves_what_was_seen(old, ended, caplog, failure):
    def look():
        raise failure

    snapshots = snapshot.Snapshots(look)
    snapshots.note(snapshots.begin(), Standing(), [BEFORE])
    assert units(snapshots) == (1, 0)
    assert ended() == 1
    assert "no /sys here" in caplog.text
    snapshots.newest()
    assert ended() == 2


def test_without_a_thread_to_look_what_was_seen_is_served(old, monkeypatch, caplog):
    def start(*_arguments):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", start)
    snapshots = snapshot.Snapshots(never)
    snapshots.note(snapshots.begin(), Standing(), [BEFORE])
    assert [units(snapshots) for _ in range(2)] == [(1, 0)] * 2
    assert len(caplog.messages) == 2
    assert "can't start new thread" in caplog.text


def test_what_was_seen_says_whether_leased_devices_are_there(fresh):
    snapshots = snapshot.Snapshots(never)
    assert not snapshots.offers([lease("", ONE)])
    snapshots.note(snapshots.begin(), Standing(), [BEFORE])
    assert snapshots.offers([lease("", ONE)])
    assert not snapshots.offers([lease("", ONE), lease("", TWO)])
    assert not snapshots.offers([lease("", handle(1, functions=2))])
