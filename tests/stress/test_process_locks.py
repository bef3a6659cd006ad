# SPDX-License-Identifier: Apache-2.0

"""Locks of dead processes, also with rubbish in them, block no call.

Locks of stalled processes block a call until its deadline at most.
"""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from os_acc import inspection
from os_acc.attach.manager import Manager
from os_acc.privsep.kernel import LOCKS
from os_acc.store import schema
from os_acc.store.database import Database
from os_acc.store.locks import Locks, consumer_lock
from os_acc.testing import uuid_of
from tests.stress import processes
from tests.stress.process_host import (
    CARDS,
    GPU,
    ProcessHost,
    attempt,
    check_in_time,
    outcome,
    plug,
    state_of,
    unplug,
    wait_until,
)
from tests.stress.simulated_host import request

pytestmark = pytest.mark.usefixtures("survived")

STORE_LOCK = "9-store"
RUBBISH = (b"", b"\0\xff" * 100, b"9" * 400, b"4611686018427387904", b"-1\n")


def hold_consumer(host: ProcessHost) -> None:
    locks = Locks(host.state_path)
    with locks.hold([consumer_lock(uuid_of(1))], time.monotonic() + 60):
        stand_still(host)


def hold_store(host: ProcessHost) -> None:
    """Hold the store in a transaction that has written already."""
    with Database(host.state_path, 60).transaction() as connection:
        schema.set_epoch(connection, schema.read_meta(connection).epoch + 1)
        stand_still(host)


def hold_worker(host: ProcessHost) -> None:
    """Hold a device's lock, as a helper's child that is at work on the device."""
    with open(worker_lock(host), "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        stand_still(host)


def stand_still(host: ProcessHost) -> None:
    Path(host.directory, "held").touch()
    time.sleep(3600)


def worker_lock(host: ProcessHost) -> str:
    return os.path.join(host.root, LOCKS, GPU)


HOLDERS = (hold_consumer, hold_store, hold_worker)


@contextmanager
def held(
    host: ProcessHost, hold: Callable[[ProcessHost], None]
) -> Iterator[processes.Child]:
    """Run a process that takes this lock and stands still."""
    holder = processes.Child(lambda: hold(host))
    wait_until(Path(host.directory, "held").exists)
    try:
        yield holder
    finally:
        holder.kill()
        assert holder.wait().killed


def plug_once(host: ProcessHost) -> None:
    """Plug and unplug once, so that all lock files exist."""
    host.run(lambda manager: (plug(manager, 1, GPU), unplug(manager, 1)))


# -- dead processes -----------------------------------------------------------


@pytest.mark.parametrize("hold", HOLDERS)
def test_the_lock_of_a_killed_process_is_free(host, pristine, hold):
    plug_once(host)
    with held(host, hold):
        pass
    tried = host.run(lambda manager: attempt(lambda: plug(manager, 1, GPU)))
    assert tried.value == [GPU]
    host.check_whole(pristine)


@pytest.mark.parametrize("rubbish", RUBBISH, ids=len)
def test_rubbish_in_lock_files_is_in_nobodys_way(host, pristine, rubbish):
    plug_once(host)
    locks = Path(host.state_path, "locks")
    names = {consumer_lock(uuid_of(1)), STORE_LOCK, *os.listdir(locks)}
    for path in (*(locks / name for name in names), Path(worker_lock(host))):
        path.write_bytes(rubbish)

    def act(manager: Manager) -> tuple[list[str], int]:
        return plug(manager, 1, GPU), unplug(manager, 1)

    assert host.run(act) == ([GPU], 1)
    host.check_whole(pristine)


# -- stalled processes --------------------------------------------------------


def test_who_stands_still_in_a_plug_keeps_one_instance_waiting(host, pristine):
    def act(manager: Manager) -> None:
        tried = attempt(lambda: plug(manager, 1, GPU))
        assert tried.error == "LockTimeout"
        check_in_time(tried, 1)
        assert plug(manager, 2, GPU) == [GPU]

    config = host.configure(plug_timeout=1.0)
    with held(host, hold_consumer):
        processes.result(lambda: act(host.serve(config)))
    assert host.run(lambda manager: plug(manager, 1, CARDS[0])) == [CARDS[0]]
    host.check_whole(pristine)


def test_who_stands_still_in_the_store_keeps_nobody_waiting_for_ever(
    host, pristine, monkeypatch
):
    """An operation keeps its deadline, however long a transaction may wait."""
    monkeypatch.setattr(inspection, "STORE_SECONDS", 600.0)
    config = host.configure(plug_timeout=1.0, unplug_timeout=1.0)

    def act(manager: Manager) -> None:
        instance, wanted = {"uuid": uuid_of(1)}, request(manager, [GPU])
        calls = (
            lambda: manager.plug(instance, *wanted),
            lambda: manager.unplug(instance),
        )
        with held(host, hold_store):
            for call in calls:
                tried = attempt(call)
                assert tried.error == "StateUnavailable:in use by another process"
                check_in_time(tried, 1)
        assert plug(manager, 1, GPU) == [GPU]

    processes.result(lambda: act(host.serve(config)))
    host.check_whole(pristine)


def test_who_stands_still_with_a_device_keeps_that_device(host, pristine):
    plug_once(host)

    def act(manager: Manager) -> None:
        with held(host, hold_worker):
            tried = attempt(lambda: plug(manager, 1, GPU))
            assert tried.error == "DeviceStuck"
            check_in_time(tried, 60, 20)
            assert plug(manager, 2, CARDS[0]) == [CARDS[0]]
        assert plug(manager, 1, GPU) == [GPU]

    host.run(act)
    host.check_whole(pristine)


def test_a_service_that_stands_still_is_not_overtaken(host, pristine):
    """The service is stopped between intent and commit, and goes on afterwards."""
    host.kernel.hang(GPU, "unbind")
    stopped = host.service(lambda manager: attempt(lambda: plug(manager, 1, GPU)))
    host.kernel.wait_until_blocked()
    os.kill(stopped.pid, signal.SIGSTOP)
    wait_until(lambda: state_of(stopped.pid) == "T")
    host.kernel.lift()
    assert host.recover() == [(GPU, "preparing")]
    os.kill(stopped.pid, signal.SIGCONT)
    assert outcome(stopped).value == [GPU]
    assert host.recover() == [(GPU, "held")]
    host.check_whole(pristine)
