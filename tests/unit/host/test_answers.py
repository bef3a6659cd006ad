# SPDX-License-Identifier: Apache-2.0

"""A driver that does not answer costs a bounded time, and only its own card."""

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent import futures

import pytest

from os_acc import deadlines, native_threads
from os_acc.exception import HostStepFailed
from os_acc.host import answers, health, mdev
from tests.silent_files import impatient as impatient
from tests.silent_files import silent
from tests.unit.host.tree import Sysfs, address

CARDS = [f"0000:{bus}:00.0" for bus in ("3b", "3c", "3d", "3e", "3f", "40")]


def vf_of(card: str, number: int = 4) -> str:
    return f"{card[:-1]}{number}"


@pytest.fixture
def cards(sysfs: Sysfs, impatient: None) -> Sysfs:
    """Add cards with two VFs that are no vGPUs."""
    for index, card in enumerate(CARDS):
        sysfs.function(card, group=index)
        for number in (4, 5):
            vf = sysfs.vf(card, 10 * index + number, vf_of(card, number))
            (vf / "nvidia").mkdir()
            (vf / "nvidia/current_vgpu_type").write_text("0\n")
    return sysfs


@contextlib.contextmanager
def hanging(sysfs: Sysfs, *cards: str) -> Iterator[None]:
    """Let the driver of cards hang when it is asked for the type of the first VF."""
    with silent(
        *(sysfs.devices / vf_of(each) / "nvidia/current_vgpu_type" for each in cards)
    ):
        yield
    assert not futures.wait(list(answers._reads.values()), 60).not_done


def test_a_read_that_hangs_ends_in_time(cards):
    with hanging(cards, CARDS[0]):
        began = time.monotonic()
        with pytest.raises(HostStepFailed, match=r"does not return") as caught:
            mdev.vgpu_type(cards.root, address(vf_of(CARDS[0])))
        assert time.monotonic() - began >= answers.SECONDS
        assert caught.value.address == vf_of(CARDS[0])
    assert mdev.vgpu_type(cards.root, address(vf_of(CARDS[0]))) == 0


def test_no_other_read_of_the_card_begins_until_it_ends(cards):
    with hanging(cards, CARDS[0]):
        for number in (4, 5):
            with pytest.raises(HostStepFailed, match="does not return"):
                mdev.vgpu_type(cards.root, address(vf_of(CARDS[0], number)))
        assert len(answers._silent) == 1
        assert mdev.vgpu_type(cards.root, address(vf_of(CARDS[1]))) == 0
    assert mdev.vgpu_type(cards.root, address(vf_of(CARDS[0], 5))) == 0


def test_callers_at_once_leave_one_thread_behind(cards):
    before = threading.active_count()
    with hanging(cards, CARDS[0]):
        reads = [
            deadlines.begin(mdev.vgpu_type, cards.root, address(vf_of(CARDS[0])))
            for _ in range(10)
        ]
        assert not futures.wait(reads, 60).not_done
        assert all(isinstance(each.exception(), HostStepFailed) for each in reads)
        pending = [each for each in answers._reads.values() if not each.done()]
        assert len(pending) == 1
    # A thread ends after the future of its call.
    end = time.monotonic() + 60
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before


def test_few_cards_hang_at_a_time(cards):
    """Each costs a thread, and a scan of the host the time for which it is awaited."""
    with hanging(cards, *CARDS):
        for card in CARDS:
            with pytest.raises(HostStepFailed, match="does not return"):
                mdev.vgpu_type(cards.root, address(vf_of(card)))
        assert len(answers._silent) == answers.MOST < len(CARDS)
    assert mdev.vgpu_type(cards.root, address(vf_of(CARDS[-1]))) == 0


def test_a_card_that_was_slow_is_left_alone_for_a_while(cards, monkeypatch):
    """Else slow cards could cost each scan the time of all of them."""
    monkeypatch.setattr(answers, "PAUSE", 3600.0)
    with hanging(cards, CARDS[0]), pytest.raises(HostStepFailed):
        mdev.vgpu_type(cards.root, address(vf_of(CARDS[0])))
    with pytest.raises(HostStepFailed, match="does not return"):
        mdev.vgpu_type(cards.root, address(vf_of(CARDS[0])))
    monkeypatch.setattr(answers, "PAUSE", 0.0)
    assert mdev.vgpu_type(cards.root, address(vf_of(CARDS[0]))) == 0


def test_a_read_of_a_plugin_that_hangs_ends_with_its_file(cards):
    """Under eventlet plugins run in threads of the kernel, which end before it."""
    place = address(vf_of(CARDS[0]))

    def plugin() -> int | None:
        return mdev.vgpu_type(cards.root, place)

    with hanging(cards, CARDS[0]):
        asked = native_threads.begin(plugin)
        assert isinstance(asked.exception(60), HostStepFailed)
    assert plugin() == 0
    assert native_threads.begin(plugin).result(60) == 0


def test_a_function_is_faulty_if_it_does_not_answer_twice(sysfs, impatient):
    """One slow read withdraws no device; what was known of it stays."""
    sensor = sysfs.function(CARDS[0]) / "hwmon/hwmon0/temp1_input"
    sensor.parent.mkdir(parents=True)
    sensor.write_text("20000\n")
    place = address(CARDS[0])
    known = {place: "is too hot"}
    with silent(sensor):
        assert health.faults(sysfs.root, [place], 0, (), known) == known
        (fault,) = health.faults(sysfs.root, [place], 0).values()
        assert "does not answer" in fault
    assert not futures.wait(list(answers._reads.values()), 60).not_done
    assert health.faults(sysfs.root, [place], 0, (), known) == {}
