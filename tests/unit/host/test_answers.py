# SPDX-License-Identifier: Apache-2.0

"""A driver that does not answer costs a bounded time, and only its own card."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from concurrent import futures

import pytest

from os_acc.exception import HostStepFailed
from os_acc.host import answers, mdev
from tests.silent_files import silent
from tests.unit.host.tree import Sysfs, address

CARDS = [f"0000:{bus}:00.0" for bus in ("3b", "3c", "3d", "3e", "3f", "40")]


def vf_of(card: str, number: int = 4) -> str:
    return f"{card[:-1]}{number}"


@pytest.fixture
def cards(sysfs: Sysfs) -> Sysfs:
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
    assert not futures.wait(list(answers._hanging.values()), 60).not_done


def test_a_read_that_hangs_ends_in_time(cards: Sysfs) -> None:
    with hanging(cards, CARDS[0]):
        began = time.monotonic()
        with pytest.raises(HostStepFailed, match=r"does not return") as caught:
            mdev.vgpu_type(cards.root, address(vf_of(CARDS[0])))
        assert time.monotonic() - began >= answers.SECONDS
        assert caught.value.address == vf_of(CARDS[0])
    assert mdev.vgpu_type(cards.root, address(vf_of(CARDS[0]))) == 0


def test_no_other_read_of_the_card_begins_until_it_ends(cards: Sysfs) -> None:
    with hanging(cards, CARDS[0]):
        for number in (4, 5):
            with pytest.raises(HostStepFailed, match="does not return"):
                mdev.vgpu_type(cards.root, address(vf_of(CARDS[0], number)))
        assert len(answers._hanging) == 1
        assert mdev.vgpu_type(cards.root, address(vf_of(CARDS[1]))) == 0
    assert mdev.vgpu_type(cards.root, address(vf_of(CARDS[0], 5))) == 0


def test_few_cards_hang_at_a_time(cards: Sysfs) -> None:
    """Each costs a thread, and a scan of the host the time for which it is awaited."""
    with hanging(cards, *CARDS):
        for card in CARDS:
            with pytest.raises(HostStepFailed, match="does not return"):
                mdev.vgpu_type(cards.root, address(vf_of(card)))
        assert len(answers._hanging) == answers.MOST < len(CARDS)
    assert mdev.vgpu_type(cards.root, address(vf_of(CARDS[-1]))) == 0
