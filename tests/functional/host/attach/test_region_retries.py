# SPDX-License-Identifier: Apache-2.0

"""``reprogram_at_release``: the rounds of the service that program regions again."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any

import pytest

from os_acc import deadlines, exception
from os_acc.attach.planning import LeasePlanner
from os_acc.attach.programming import Programmer
from os_acc.attach.region_operations import RegionOperations
from os_acc.objects.pci import PciAddress
from os_acc.testing import TestHost, instance, request
from tests.expected_errors import raises
from tests.functional.host.attach.test_rebuild import die
from tests.functional.host.attach.test_region_restored import pre_program
from tests.unit.fpga import (
    AT_RELEASE,
    CARD,
    CRYPTO,
    GZIP,
    be_a_guest,
    function_trait,
    held,
    in_time,
    is_unknown,
    traits,
    upload,
)

ADDRESS = PciAddress.parse(CARD)
TRAIT = function_trait(GZIP)
ELSEWHERE = ['{"address": "0000:af:*.*"}']


@pytest.fixture
def waiting(make_fpgas, monkeypatch) -> TestHost:
    """Return a host with a released card that the next round programs."""
    bench = make_fpgas(groups=AT_RELEASE)
    upload(bench)
    pre_program(bench)
    with monkeypatch.context() as patch:
        patch.setattr(RegionOperations, "restore_released", lambda *_arguments: None)
        be_a_guest(bench)
    assert TRAIT not in traits(bench)
    return bench


def run_round(bench: TestHost) -> None:
    for attempt in bench.manager.retrier.retry():
        attempt.result(60)


def due(bench: TestHost) -> list[str]:
    return bench.manager.regions.due(math.inf)


def be_a_guest_whose_release_ends_later(bench: TestHost, plug: bool = True) -> None:
    """Unplug a guest whose process still holds the card, and then lets it go."""
    if plug:
        bench.plug(1, CARD)
    bench.kernel.program_as_guest(CARD, CRYPTO)
    bench.kernel.hold(CARD)
    with pytest.raises(exception.DevicesUnreleased):
        bench.unplug(1)
    bench.kernel.let_go(CARD)


# -- failures ---------------------------------------------------------------------


def test_a_failure_that_cannot_pass_is_not_repeated(waiting):
    waiting.kernel.fail_programming(CARD, "reconfig CRC error")
    run_round(waiting)
    count = len(waiting.programmings())
    run_round(waiting)
    assert len(waiting.programmings()) == count
    assert due(waiting) == []


@pytest.mark.parametrize("is_repaired", [True, False])
def test_the_next_guest_of_a_region_makes_it_due_again(waiting, is_repaired):
    """Its release is completed by a retry, or by a command."""
    waiting.kernel.fail_programming(CARD, "reconfig CRC error")
    run_round(waiting)
    if is_repaired:
        waiting.manager.regions.program(ADDRESS, in_time())
    else:
        waiting.plug(1, CARD, function_id=GZIP)
    be_a_guest_whose_release_ends_later(waiting, plug=is_repaired)
    for _release_then_program in range(2):
        run_round(waiting)
    assert TRAIT in traits(waiting)


@pytest.mark.parametrize("step", ["before the plan", "after the plan"])
def test_a_guest_that_is_faster_makes_no_failure(waiting, monkeypatch, caplog, step):
    """It has the card's function by the time that the region is read."""
    kind, name = (
        (RegionOperations, "_program")
        if step == "before the plan"
        else (LeasePlanner, "plan")
    )
    original = getattr(kind, name)

    def late(self, *arguments, **named):
        monkeypatch.setattr(kind, name, original)
        if step == "before the plan":
            waiting.plug(1, CARD)
        found = original(self, *arguments, **named)
        if step == "after the plan":
            waiting.plug(1, CARD)
        return found

    monkeypatch.setattr(kind, name, late)
    run_round(waiting)
    assert waiting.plugged(1) == [CARD]
    assert "os-acc region program" not in caplog.text
    be_a_guest_whose_release_ends_later(waiting, plug=False)
    for _release_then_program in range(2):
        run_round(waiting)
    assert TRAIT in traits(waiting)


# -- regions that are not offered -----------------------------------------------------


def test_a_region_that_is_not_offered_any_more_is_scanned_for_once(
    waiting, monkeypatch, caplog
):
    waiting.options["device_spec"] = ELSEWHERE
    waiting.restart()
    scans = []
    look = waiting.manager.catalog.look
    monkeypatch.setattr(
        waiting.manager.catalog, "look", lambda *each: scans.append(1) or look(*each)
    )
    for _ in range(3):
        run_round(waiting)
    assert len(scans) == 1
    assert due(waiting) == []
    assert caplog.text.count("is not offered") == 1


def test_a_region_that_is_offered_again_is_programmed(waiting):
    path = waiting.kernel.path("sys/bus/pci/drivers/dfl-pci")
    waiting.kernel.write(f"{path}/unbind", CARD)
    run_round(waiting)
    assert due(waiting) == []
    waiting.kernel.write(f"{path}/bind", CARD)
    waiting.manager.discover()
    run_round(waiting)
    assert TRAIT in traits(waiting)


# -- other causes ---------------------------------------------------------------------


def test_a_region_that_a_failed_plug_left_unverified_is_programmed(make_fpgas):
    bench = make_fpgas(groups=AT_RELEASE)
    upload(bench)
    upload(bench, "crypto", CRYPTO)
    pre_program(bench)
    bench.kernel.fail_programming(CARD, "reconfig CRC error")
    with raises(exception.ProgrammingReason.CRC):
        bench.plug(1, CARD, function_id=CRYPTO)
    assert is_unknown(bench)
    run_round(bench)
    assert held(bench) == GZIP
    assert TRAIT in traits(bench)


# -- plugs meanwhile ------------------------------------------------------------------


class SlowProgramming:
    """Programming of a region that goes on until the test ends it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._write = Programmer._write
        self.began, self.may_end = threading.Event(), threading.Event()
        monkeypatch.setattr(Programmer, "_write", self)

    def __get__(self, programmer: Programmer, _kind: type) -> Callable[..., None]:
        def write(*arguments: Any) -> None:
            self.began.set()
            assert self.may_end.wait(60)
            self._write(programmer, *arguments)

        return write


@pytest.fixture
def slow(monkeypatch) -> SlowProgramming:
    return SlowProgramming(monkeypatch)


def begin(slow: SlowProgramming, function: Callable[..., Any], *arguments: Any) -> Any:
    """Start a function while a region is programmed; let it wait, then end both."""
    attempt = deadlines.begin(function, *arguments)
    assert futures.wait([attempt], 0.5).not_done
    slow.may_end.set()
    return attempt.result(60)


def test_a_plug_waits_for_the_region_that_a_round_programs(waiting, slow):
    (round_,) = waiting.manager.retrier.retry()
    assert slow.began.wait(60)
    begin(slow, waiting.plug, 1, CARD)
    round_.result(60)
    assert waiting.plugged(1) == [CARD]
    assert held(waiting) == GZIP


def test_a_plug_waits_for_the_region_that_a_command_programs(waiting, slow):
    command = deadlines.begin(waiting.manager.regions.program, ADDRESS, in_time())
    assert slow.began.wait(60)
    selected, specs = request(waiting.provider(CARD))
    specs |= {f"trait1:{TRAIT}": "required"}
    begin(slow, waiting.manager.plug, instance(1), selected, specs)
    command.result(60)
    assert waiting.plugged(1) == [CARD]


def test_a_plug_does_not_wait_longer_than_its_time(waiting, slow):
    settings = waiting.manager.settings
    (round_,) = waiting.manager.retrier.retry()
    assert slow.began.wait(60)
    waiting.manager.settings = dataclasses.replace(settings, plug_timeout=0.5)
    with raises(exception.NoDeviceReason.NOT_FREE):
        waiting.plug(1, CARD)
    slow.may_end.set()
    round_.result(60)
    assert TRAIT in traits(waiting)


def test_a_plug_does_not_wait_for_a_programming_that_was_killed(waiting, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("os_acc.attach.lifecycle.Lifecycle.release", die)
        with pytest.raises(KeyboardInterrupt):
            waiting.manager.regions.program(ADDRESS, in_time())
    with raises(exception.NoDeviceReason.NOT_FREE):
        waiting.plug(1, CARD)
    # The round that each plug of a service starts.
    run_round(waiting)
    waiting.plug(1, CARD)
