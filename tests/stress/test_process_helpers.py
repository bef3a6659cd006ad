# SPDX-License-Identifier: Apache-2.0

"""Services survive helpers that die, stop, or are full, in the middle of calls."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

import pytest

from os_acc import deadlines, exception, privsep
from os_acc.attach.manager import Manager
from tests.stress import process_dying_helper, processes
from tests.stress.process_host import (
    AUDIO,
    CARDS,
    GPU,
    PYTHON,
    Attempt,
    attempt,
    check_in_time,
    outcome,
    parent,
    plug,
    state_of,
    unplug,
    wait_until,
)

pytestmark = pytest.mark.usefixtures("survived")

VFIO = "vfio-pci"


# -- killed ------------------------------------------------------------------


@pytest.mark.parametrize("point", process_dying_helper.POINTS)
def test_a_helper_killed_in_a_call_is_told_and_replaced(host, pristine, point):
    flag = os.path.join(host.directory, "flag")
    program = process_dying_helper.__file__
    words = ("--dies-at", point, "--flag", flag, "--fake-root", host.root)

    def both_ways(manager: Manager) -> list[Attempt]:
        Path(flag).touch()
        plugs = [attempt(lambda: plug(manager, 1, GPU)) for _ in range(2)]
        Path(flag).touch()
        return plugs + [attempt(lambda: unplug(manager, 1)) for _ in range(2)]

    config = host.configure(*PYTHON, program, *words)
    tried = processes.result(lambda: both_ways(host.serve(config)))
    assert [each.error for each in tried] == ["HelperLost", "", "DevicesUnreleased", ""]
    assert [each.value for each in tried] == [None, [GPU], None, 1]
    for each in tried:
        check_in_time(each, 60, 20)
    host.check_whole(pristine)


def test_a_helper_that_never_comes_keeps_initialize_no_longer_than_allowed(
    host, pristine
):
    """For example, sudo asks for a password."""
    script = Path(host.directory, "never")
    over = Path(host.directory, "over")
    script.write_text(f"until [ -e {over} ]; do sleep 0.1; done\n")
    config = host.configure("/bin/sh", str(script), initialize_timeout=1.0)
    tried = processes.result(lambda: attempt(lambda: host.serve(config)))
    over.touch()
    assert tried.error == "HelperUnavailable"
    check_in_time(tried, 1)
    host.check_whole(pristine)


# -- stuck -------------------------------------------------------------------


def test_many_stuck_devices_keep_nobody_else_waiting(host, pristine):
    """Twice as many writes never return as the helper has threads."""
    stuck, others = CARDS[:12], CARDS[12:20]
    for card in stuck:
        host.kernel.hang(card, "driver_override")

    def plug_all(manager: Manager) -> tuple[list[Attempt], list[Attempt]]:
        tried = [
            deadlines.begin(attempt, lambda n=n, card=card: plug(manager, n, card))
            for n, card in enumerate((*stuck, *others))
        ]
        every = [each.result() for each in tried]
        served = [attempt(lambda: plug(manager, 50, GPU))]
        return every[:12], every[12:] + served

    config = host.configure(threads=6, write_timeout=2.0, plug_timeout=60.0)
    failed, served = processes.result(lambda: plug_all(host.serve(config)))
    assert {each.error for each in failed} <= {"DeviceStuck", "HelperLost"}
    assert [each.value for each in served] == [*([card] for card in others), [GPU]]
    for each in failed + served:
        check_in_time(each, 60, 2)
    host.kernel.lift()
    host.check_whole(pristine)


def test_the_helper_of_one_service_never_returns_and_another_is_served(host, pristine):
    host.kernel.hang(GPU, "unbind")
    first = host.service(
        lambda manager: attempt(lambda: plug(manager, 1, GPU)), write_timeout=2.0
    )
    host.kernel.wait_until_blocked()

    def beside(manager: Manager) -> list[Attempt]:
        return [
            attempt(lambda: plug(manager, 2, GPU)),
            attempt(lambda: plug(manager, 2, CARDS[0])),
            attempt(lambda: unplug(manager, 2)),
        ]

    taken, served, back = host.run(beside)
    assert taken.error == "NoDeviceAvailable"
    assert (served.value, back.value) == ([CARDS[0]], 1)
    late = outcome(first)
    assert late.error == "DeviceStuck"
    check_in_time(late, 60, 2)
    host.kernel.lift()
    host.check_whole(pristine)


# -- stopped -----------------------------------------------------------------


def test_a_stopped_helper_costs_one_caller_its_time_and_is_replaced(host, pristine):
    def stopped(manager: Manager) -> list[object]:
        (silent,) = host.helpers()
        os.kill(silent, signal.SIGSTOP)
        wait_until(lambda: state_of(silent) == "T")
        tried = [
            attempt(lambda: plug(manager, 1, GPU)),
            attempt(lambda: plug(manager, 2, CARDS[0])),
        ]
        assert silent in host.helpers()
        os.kill(silent, signal.SIGCONT)
        # The request comes late: the device is not wanted any more.
        wait_until(lambda: silent not in host.helpers())
        assert {host.kernel.state(GPU), host.kernel.state(AUDIO)} <= set(pristine)
        return [*tried, attempt(lambda: unplug(manager, 2))]

    config = host.configure(write_timeout=3.0, plug_timeout=30.0)
    lost, served, back = processes.result(lambda: stopped(host.serve(config)))
    assert lost.error == "HelperLost"
    check_in_time(lost, 30, 3)
    assert served.value == [CARDS[0]]
    check_in_time(served, 30)
    assert back.value == 1
    host.check_whole(pristine)


def test_an_unplug_that_finds_its_helper_stopped_is_done_by_the_next(host, pristine):
    def stopped(manager: Manager) -> list[Attempt]:
        plug(manager, 1, GPU, CARDS[0])
        (silent,) = host.helpers()
        os.kill(silent, signal.SIGSTOP)
        tried = [attempt(lambda: unplug(manager, 1)) for _ in range(2)]
        tried.append(attempt(lambda: plug(manager, 2, GPU)))
        os.kill(silent, signal.SIGCONT)
        wait_until(lambda: silent not in host.helpers())
        # Its late call would have released the device that is held now.
        assert host.kernel.state(GPU).driver == VFIO
        return tried

    config = host.configure(write_timeout=3.0, unplug_timeout=30.0)
    lost, back, served = processes.result(lambda: stopped(host.serve(config)))
    assert lost.error == "DevicesUnreleased"
    assert "does not answer" in lost.text
    assert (back.value, served.value) == (2, [GPU])
    for each in (lost, back):
        check_in_time(each, 30)
    host.check_whole(pristine)


def test_a_helper_stopped_while_its_worker_writes_lets_the_worker_end(host, pristine):
    host.kernel.hang(GPU, "unbind")

    def stopped(manager: Manager) -> list[Attempt]:
        lost = deadlines.begin(attempt, lambda: plug(manager, 1, GPU))
        host.kernel.wait_until_blocked()
        silent = parent(host.blocked()[0])
        os.kill(silent, signal.SIGSTOP)
        tried = [
            lost.result(),
            attempt(lambda: plug(manager, 1, GPU)),
            attempt(lambda: plug(manager, 2, CARDS[0])),
        ]
        host.kernel.lift()
        os.kill(silent, signal.SIGCONT)
        wait_until(lambda: silent not in host.helpers())
        return [*tried, attempt(lambda: plug(manager, 1, GPU))]

    config = host.configure(write_timeout=3.0, plug_timeout=30.0)
    tried = processes.result(lambda: stopped(host.serve(config)))
    lost, busy, other, again = tried
    assert lost.error == "HelperLost"
    assert busy.error == "DeviceStuck"
    assert (other.value, again.value) == ([CARDS[0]], [GPU])
    for each in tried:
        check_in_time(each, 30, 3)
    host.check_whole(pristine)


def test_who_looks_for_holders_may_be_stopped_as_well(host, pristine):
    def stopped(manager: Manager) -> list[Attempt]:
        (silent,) = host.helpers("inspect")
        os.kill(silent, signal.SIGSTOP)
        return [attempt(lambda: plug(manager, 1, GPU)) for _ in range(2)]

    config = host.configure(write_timeout=3.0, plug_timeout=30.0)
    child = processes.Child(lambda: stopped(host.serve(config, inspects=True)))
    lost, served = outcome(child)
    assert lost.error == "HelperLost"
    assert served.value == [GPU]
    for each in (lost, served):
        check_in_time(each, 30, 3)
    host.check_whole(pristine)


# -- several -----------------------------------------------------------------


def test_two_services_with_helpers_of_their_own_share_devices(host, pristine):
    """Each of their threads wants one of three cards, again and again."""
    cards = CARDS[:3]
    held = Path(host.directory, "held")
    held.mkdir()

    def turn(manager: Manager, number: int) -> int:
        """Plug and unplug once; fail if another instance has the card."""
        found: list[str] = []

        def served() -> bool:
            with contextlib.suppress(exception.NoDeviceAvailable):
                found.extend(plug(manager, number, cards[number % 3]))
            return bool(found)

        wait_until(served)
        (card,) = found
        with open(held / card, "x"):
            assert host.kernel.state(card).driver == VFIO
        os.unlink(held / card)
        return unplug(manager, number)

    def share(manager: Manager, first: int) -> int:
        def work(number: int) -> int:
            return sum(turn(manager, number) for _ in range(3))

        return sum(deadlines.side_by_side(range(first, first + 4), work, 4))

    services = [
        host.service(lambda manager, first=first: share(manager, first))
        for first in (10, 20)
    ]
    assert [outcome(each) for each in services] == [12, 12]
    assert os.listdir(held) == []
    host.check_whole(pristine)


def test_many_callers_who_need_a_helper_start_one(host, pristine):
    def together(manager: Manager) -> tuple[int, list[Attempt]]:
        (before,) = host.helpers()
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: not privsep.base.channel.running)
        ready = threading.Barrier(6)

        def one(number: int) -> Attempt:
            ready.wait()
            return attempt(lambda: plug(manager, number, CARDS[number]))

        tried = deadlines.side_by_side(range(6), one, 6)
        return len(host.helpers()), tried

    number, tried = host.run(together)
    assert number == 1
    assert [each.value for each in tried] == [[card] for card in CARDS[:6]]
    host.check_whole(pristine)
