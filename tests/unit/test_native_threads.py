# SPDX-License-Identifier: Apache-2.0

"""A call that blocks its thread leaves the others alone, also under eventlet."""

import _thread
import os
import threading
import time
import types

import pytest

from os_acc import deadlines, exception, native_threads
from os_acc.plugins import loader


def test_others_run_while_a_call_blocks():
    readable, writable = os.pipe()
    reading = native_threads.begin(os.read, readable, 1)
    for _ in range(20):
        time.sleep(0.001)
    assert not reading.done()
    os.write(writable, b"x")
    assert reading.result(60) == b"x"


def test_a_call_has_a_thread_of_the_kernel():
    mine = threading.get_native_id()
    assert native_threads.begin(threading.get_native_id).result(60) != mine


def test_what_it_hands_over_runs_where_the_caller_waits():
    """Under eventlet: in the thread of the greenlets, which may switch there."""

    def call() -> tuple[int, int]:
        there = native_threads.hand_over(threading.get_native_id)
        return threading.get_native_id(), there

    own, there = native_threads.begin(call).result(60)
    if native_threads.is_needed():
        assert there == threading.get_native_id() != own
    else:
        assert there == own


def test_an_error_reaches_the_caller():
    with pytest.raises(ZeroDivisionError):
        native_threads.begin(lambda: 1 // 0).result(60)

    def fail() -> None:
        raise LookupError("handed over")

    with pytest.raises(LookupError, match="handed over"):
        native_threads.begin(native_threads.hand_over, fail).result(60)


def test_without_a_thread_it_is_refused(monkeypatch):
    def start(*_arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    threads = native_threads.before_eventlet("_thread") or _thread
    monkeypatch.setattr(threads, "start_new_thread", start)
    with pytest.raises(exception.DeviceStuck, match="cannot start a thread"):
        native_threads.begin(os.getpid)


def test_its_thread_leaves_no_file_open():
    """Under eventlet, each thread of the kernel that sleeps makes a hub."""
    native_threads.begin(time.sleep, 0.001).result(60)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        native_threads.begin(time.sleep, 0.001).result(60)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_plugin_whose_calls_share_a_lock_does_not_hang():
    calls, lock = loader.PluginCalls("acme"), threading.Lock()

    def call() -> None:
        with lock:
            time.sleep(0.01)

    both = [deadlines.begin(calls.call, 60.0, call) for _ in range(4)]
    for each in both:
        each.result(60)


def test_a_call_that_waits_in_vain_for_its_turn_was_never_made(monkeypatch):
    """Under eventlet, a long call of a plugin keeps its other calls waiting."""
    monkeypatch.setattr(native_threads, "is_needed", lambda: True)
    calls, made = loader.PluginCalls("acme"), []
    with calls._turn, pytest.raises(exception.PluginFailed) as caught:
        calls.call(0.05, made.append, "made")
    assert (caught.value.reason, made) == (exception.PluginReason.BUSY, [])
    assert caught.value.retryable
    assert not calls.hangs


@pytest.mark.parametrize("waited", [False, True])
def test_only_a_call_with_time_enough_of_its_own_has_failed(monkeypatch, waited):
    """The wait for its turn leaves the other one too little."""
    calls, over = loader.PluginCalls("acme"), threading.Event()
    seconds = 0.2
    if waited:
        at = time.monotonic()
        now = iter([at, at + 0.9 * seconds])
        clock = types.SimpleNamespace(monotonic=lambda: next(now))
        monkeypatch.setattr(loader, "time", clock)
    with pytest.raises(exception.PluginFailed, match="did not return") as caught:
        calls.call(seconds, _wait_for, over)
    over.set()
    reason = exception.PluginReason.BUSY if waited else exception.PluginReason.FAILED
    assert caught.value.reason is reason


def _wait_for(over: threading.Event) -> None:
    while not over.is_set():
        time.sleep(0.005)
