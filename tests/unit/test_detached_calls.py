# SPDX-License-Identifier: Apache-2.0

"""Threads that end before their start is signalled, or in the middle of their work."""

import _thread
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import os_acc
from os_acc import deadlines, exception
from os_acc.objects.lease import LeaseState
from os_acc.testing import instance, request

GPU, FPGA = "0000:17:00.0", "0000:5e:00.0"
#: Far longer than a slow machine needs.
LONG = 60.0


def out_of_memory(*_arguments: object) -> None:
    raise MemoryError


def in_time(check: Callable[[], bool]) -> bool:
    """Return the result of a check in a child, which an alarm kills if it hangs."""
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(int(LONG))
            # Each thread started by threading ends before it signals its start.
            threading.Thread._bootstrap_inner = out_of_memory
            os._exit(0 if check() else 2)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# -- a thread that ends before its start is signalled -------------------------------


def test_a_plug_does_not_wait_for_a_thread_without_memory(bench):
    arguments = request(bench.provider(FPGA))
    assert in_time(lambda: len(bench.manager.plug(instance(1), *arguments)) == 1)


def test_a_plug_whose_threads_do_not_start_is_refused_and_frees_its_lock(
    bench, monkeypatch
):
    arguments = request(bench.provider(FPGA))
    before = bench.kernel.snapshot()
    with monkeypatch.context() as patched:
        patched.setattr(deadlines, "START_SECONDS", 0.2)
        patched.setattr(deadlines, "_bootstrap", out_of_memory)
        patched.setattr("sys.unraisablehook", lambda _about: None)
        with pytest.raises(exception.DeviceStuck, match="did not start") as caught:
            bench.manager.plug(instance(1), *arguments)
    assert caught.value.retryable
    assert "MemoryMax" in caught.value.hint
    assert bench.kernel.snapshot() == before
    assert bench.manager.store.leases() == ()
    bench.plug(1, FPGA)
    assert bench.lease_state() is LeaseState.HELD


def test_a_thread_without_memory_to_be_made_is_refused(monkeypatch):
    monkeypatch.setattr(_thread, "start_new_thread", out_of_memory)
    with pytest.raises(exception.DeviceStuck, match="cannot start a thread"):
        deadlines.begin(int)


def test_a_thread_that_starts_too_late_does_nothing(monkeypatch):
    late = []
    monkeypatch.setattr(deadlines, "START_SECONDS", 0.05)
    monkeypatch.setattr(
        _thread, "start_new_thread", lambda *arguments: late.append(arguments)
    )
    done = []
    with pytest.raises(exception.DeviceStuck):
        deadlines.begin(done.append, 1)
    ((bootstrap, arguments),) = late
    bootstrap(*arguments)
    assert done == []


# -- a thread that ends in the middle of its work ------------------------------------


def test_work_of_a_thread_that_ends_in_its_middle_is_refused(monkeypatch):
    run = deadlines._run

    def ends_at_two(answer, function):
        if function.args == (2,):
            raise MemoryError
        run(answer, function)

    monkeypatch.setattr(deadlines, "_run", ends_at_two)
    monkeypatch.setattr(deadlines, "_LOOK", 0.05)
    monkeypatch.setattr("sys.unraisablehook", lambda _about: None)
    done = []

    def check() -> bool:
        with pytest.raises(
            exception.DeviceStuck, match="before its work was finished"
        ) as caught:
            deadlines.side_by_side(range(5), done.append, 2)
        return caught.value.retryable and sorted(done) == [0, 1, 3, 4]

    assert in_time(check)


# -- the only place that starts threads -----------------------------------------------


def test_a_thread_is_started_in_one_place():
    """Neither ``threading.Thread`` nor an executor bounds the wait for a start."""
    starts = re.compile(r"threading\.Thread\(|ThreadPoolExecutor|start_new_thread")
    package = Path(os_acc.__file__).parent
    found = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if path.parts[len(package.parts)] not in ("testing", "demo")
        and starts.search(path.read_text())
    }
    assert found == {"deadlines.py", "native_threads.py"}


def test_a_call_runs_if_its_thread_cannot_be_traced(monkeypatch):
    """The interpreter refuses a trace function while another thread installs one."""

    def refuse(_trace: object) -> None:
        raise RuntimeError("another trace function is being installed")

    monkeypatch.setattr(sys, "settrace", refuse)
    monkeypatch.setattr(threading, "gettrace", lambda: refuse)
    assert deadlines.begin(lambda: 7).result(10) == 7
