# SPDX-License-Identifier: Apache-2.0

"""Files whose readers hang, as with a driver that does not answer."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import pytest

from os_acc import native_threads
from os_acc.host import answers

#: Seconds after which a process that waits for a read may go on, and the test fails.
LONG = 300.0


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let silent cards be read again at once, and forget them after the test."""
    monkeypatch.setattr(answers, "PAUSE", 0.0)
    yield
    assert not futures.wait(list(answers._reads.values()), 60).not_done
    answers._forget()


@contextlib.contextmanager
def silent(*files: Path) -> Iterator[None]:
    """Let reads of files hang in a block; check that one hangs at its end.

    Opening a FIFO for reading waits for a writer.
    """
    contents = {each: each.read_bytes() for each in files if each.exists()}
    for each in files:
        each.unlink(missing_ok=True)
        os.mkfifo(each)
    threads = native_threads.before_eventlet("threading") or threading
    rescue = threads.Timer(LONG, lambda: list(map(_let_go, files)))
    rescue.start()
    hung = False
    try:
        yield
    finally:
        rescue.cancel()
        for each in files:
            hung = _let_go(each) or hung
            each.unlink()
            if each in contents:
                each.write_bytes(contents[each])
    assert hung


def _let_go(fifo: Path) -> bool:
    """Let the readers of a FIFO go on; return whether there is one."""
    try:
        # Fails if no process reads: fifo(7).
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True
