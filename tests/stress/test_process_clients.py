# SPDX-License-Identifier: Apache-2.0

"""A service that is killed, stopped or forked in the middle of calls loses nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from os_acc import deadlines, privsep
from os_acc.attach.manager import Manager
from os_acc.testing import WriteOutcome
from tests.stress import process_program
from tests.stress.process_host import (
    AUDIO,
    CARDS,
    GPU,
    Attempt,
    attempt,
    check_in_time,
    parent,
    plug,
    state_of,
    unplug,
    wait_until,
)

pytestmark = pytest.mark.usefixtures("survived")

VFIO = "vfio-pci"
_CHECKOUT = Path(__file__).resolve().parents[2]


def die_once_sent(count: int) -> None:
    """Kill this process as soon as it has sent this number of calls."""
    channel = privsep.base.channel
    assert channel is not None
    writer: Any = channel.writer
    send, sent = writer.send, []

    def note(message: object) -> None:
        send(message)
        sent.append(message)
        if len(sent) == count:
            os.kill(os.getpid(), signal.SIGKILL)

    writer.send = note


# -- killed ------------------------------------------------------------------


@pytest.mark.parametrize("call", ["plug", "unplug"])
def test_a_client_killed_with_calls_running_and_queued(host, pristine, call):
    """Calls still finish: the running ones are left alone, queued ones refused."""
    running, queued = CARDS[:2], CARDS[2:6]

    def plug_all(manager: Manager) -> None:
        for number, card in enumerate((*running, *queued)):
            plug(manager, number, card)

    def act(manager: Manager) -> None:
        def begin(number: int, card: str) -> None:
            one = (manager, number, card) if call == "plug" else (manager, number)
            deadlines.begin(plug if call == "plug" else unplug, *one)

        die_once_sent(6)
        for number, card in enumerate(running):
            begin(number, card)
        host.kernel.wait_until_blocked(2)
        for number, card in enumerate(queued, 2):
            begin(number, card)
        time.sleep(3600)

    if call == "unplug":
        host.run(plug_all)
    for card in running:
        host.kernel.hang(card, "driver_override")
    assert host.service(act, threads=2).wait().killed
    (helper,) = host.helpers()

    # 1. Recovery leaves devices that are being written to alone, and ends the rest.
    assert sorted(host.recover()) == [(card, "releasing") for card in running]
    # 2. The devices of the rest are free for others at once.
    taken, free = list(queued[:2]), queued[2:]
    assert host.run(lambda manager: plug(manager, 50, *taken)) == taken
    count = len(host.kernel.writes())
    # 3. The dead client's running calls go on, and the queued ones begin.
    host.kernel.lift()
    wait_until(lambda: helper not in host.helpers())
    late = [f"{each.path} {each.text}" for each in host.kernel.writes()[count:]]
    assert late
    assert not [write for write in late for card in queued if card in write]
    assert [host.kernel.state(card).driver for card in taken] == [VFIO] * 2
    assert {host.kernel.state(card) for card in free} <= set(pristine)
    host.check_whole(pristine)


def test_a_helper_ends_with_its_client_though_a_forked_child_lives(host, pristine):
    def fork(manager: Manager) -> None:
        pid = os.fork()
        if pid == 0:
            time.sleep(3600)
            os._exit(0)
        Path(host.directory, "child").write_text(str(pid))
        time.sleep(3600)

    client = host.service(fork)
    report = Path(host.directory, "child")
    wait_until(lambda: report.exists() and report.read_text())
    child = int(report.read_text())
    try:
        assert len(host.helpers()) == 1
        client.kill()
        wait_until(lambda: not host.helpers())
        assert state_of(child) == "S"
    finally:
        os.kill(child, signal.SIGKILL)
    assert client.wait().killed
    host.check_whole(pristine)


# -- stopped -----------------------------------------------------------------


def test_a_service_ended_by_sigterm_loses_nothing(host, pristine):
    host.kernel.hang(AUDIO, "unbind")
    client = host.service(lambda manager: plug(manager, 1, GPU))
    host.kernel.wait_until_blocked()
    os.kill(client.pid, signal.SIGTERM)
    assert client.wait().trouble == f"status {signal.SIGTERM}"
    assert host.recover() == [(GPU, "releasing")]
    host.kernel.lift()
    host.check_whole(pristine)


def test_sigterm_to_all_its_processes_ends_no_write_half_way(host, pristine):
    """Kill the client, its helper and its worker, as a service manager does."""
    host.kernel.hang(AUDIO, "unbind")
    client = host.service(lambda manager: plug(manager, 1, GPU))
    host.kernel.wait_until_blocked()
    (worker,) = host.blocked()
    (helper,) = host.helpers()
    assert os.getpgid(worker) == helper
    for group in (client.pid, helper):
        os.killpg(group, signal.SIGTERM)
    assert client.wait().trouble == f"status {signal.SIGTERM}"
    wait_until(lambda: helper not in host.helpers() | {parent(worker)})
    assert host.recover() == [(GPU, "releasing")]
    host.kernel.lift()
    wait_until(lambda: state_of(worker) in ("", "Z"))
    unbound = [
        w for w in host.kernel.writes() if w.path.endswith(f"{AUDIO}/driver/unbind")
    ]
    assert [write.outcome for write in unbound] == [
        WriteOutcome.BLOCKED,
        WriteOutcome.DONE,
    ]
    host.check_whole(pristine)


class Told(BaseException):
    """An exception that a handler of SIGTERM raises in the main thread."""


def interrupted(call: Callable[[], object]) -> Attempt:
    """Attempt a call in which a handler raises one of these exceptions."""
    began = time.monotonic()
    try:
        return attempt(call)
    except (Told, SystemExit, KeyboardInterrupt) as error:
        name, seconds = type(error).__name__, time.monotonic() - began
        return Attempt(None, name, "\n".join(getattr(error, "__notes__", ())), seconds)


@pytest.mark.native_threads
@pytest.mark.parametrize("raised", [Told, SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("cards", [(GPU,), (GPU, *CARDS[:3])], ids=["one", "several"])
def test_a_handler_that_raises_in_the_middle_of_a_plug(host, pristine, raised, cards):
    def handle(_number: int, _frame: object) -> None:
        raise raised()

    def act(manager: Manager) -> list[Attempt]:
        number = signal.SIGINT if raised is KeyboardInterrupt else signal.SIGTERM
        signal.signal(number, handle)

        def tell() -> None:
            host.kernel.wait_until_blocked()
            os.kill(os.getpid(), number)

        deadlines.begin(tell)
        report = interrupted(lambda: plug(manager, 1, *cards))
        host.kernel.lift()
        # The same instance again: its unfinished plug is settled first.
        again = attempt(lambda: plug(manager, 1, *cards))
        return [report, again]

    host.kernel.hang(GPU, "unbind")
    report, again = host.run(act, write_timeout=3.0)
    assert report.error == raised.__name__
    check_in_time(report, 60, 3)
    assert again.value == list(cards)
    host.check_whole(pristine)


# -- the end of an interpreter -----------------------------------------------


@pytest.mark.parametrize("how", ["daemon", "thread", "executor", "sigterm"])
def test_an_interpreter_that_ends_in_a_plug(host, pristine, how):
    """A write that never returns keeps no process from ending."""
    host.kernel.hang(GPU, "unbind")
    config = host.configure(plug_timeout=10.0, write_timeout=2.0)
    arguments = [how, config, host.root, GPU, *CARDS[:3]]
    program = subprocess.Popen(
        [sys.executable, "-m", process_program.__name__, *arguments],
        cwd=_CHECKOUT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        host.kernel.wait_until_blocked()
        if how == "sigterm":
            assert program.stdout is not None
            assert program.stdout.readline() == "ready\n"
            program.terminate()
        report, _ = program.communicate(timeout=10 + 2 + 2 * deadlines.GRACE + 30)
    finally:
        program.kill()
        program.wait()
    if how == "daemon":
        assert report == ""
    else:
        value, error, seconds = json.loads(report)
        assert (value, error) == (None, "DeviceStuck")
        check_in_time(Attempt(value, error, "", seconds), 10, 2)
    assert program.returncode == (7 if how in ("executor", "sigterm") else 0)
    assert (GPU, "releasing") in host.recover()
    host.kernel.lift()
    host.check_whole(pristine)


# -- forked ------------------------------------------------------------------


@pytest.mark.native_threads
def test_a_forked_child_plugs_while_its_parent_is_at_it(host, pristine):
    """The parent's threads hold every lock at one moment or another."""
    host.kernel.hang(GPU, "unbind")

    def in_child(manager: Manager, number: int) -> int:
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            signal.alarm(120)
            tried = attempt(lambda: plug(manager, number, CARDS[number]))
            back = attempt(lambda: unplug(manager, number))
            status = 0 if (tried.value, back.value) == ([CARDS[number]], 1) else 2
        finally:
            os._exit(status)

    def act(manager: Manager) -> tuple[Attempt, list[int], list[Attempt]]:
        stop = threading.Event()

        def again_and_again(number: int) -> Attempt:
            while not stop.is_set():
                plug(manager, number, CARDS[number])
                unplug(manager, number)
            return attempt(lambda: plug(manager, number, CARDS[number]))

        stuck = deadlines.begin(attempt, lambda: plug(manager, 1, GPU))
        host.kernel.wait_until_blocked()
        busy = [deadlines.begin(again_and_again, number) for number in (2, 3, 4)]
        children = [in_child(manager, number) for number in (5, 6, 7)]
        ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        stop.set()
        host.kernel.lift()
        return stuck.result(), ends, [each.result() for each in busy]

    stuck, ends, busy = host.run(act)
    assert stuck.value == [GPU]
    assert ends == [0, 0, 0]
    assert [each.value for each in busy] == [[CARDS[n]] for n in (2, 3, 4)]
    host.check_whole(pristine)


@pytest.mark.native_threads
def test_a_forked_child_that_ends_takes_nothing_of_its_parents_along(host, pristine):
    def act(manager: Manager) -> tuple[Attempt, frozenset[int]]:
        before = host.helpers()
        host.kernel.hang(GPU, "unbind")
        plugging = deadlines.begin(attempt, lambda: plug(manager, 1, GPU))
        host.kernel.wait_until_blocked()
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        host.kernel.lift()
        return plugging.result(), before ^ host.helpers()

    tried, changed = host.run(act)
    assert (tried.value, changed) == ([GPU], frozenset())
    host.check_whole(pristine)
