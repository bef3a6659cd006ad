# SPDX-License-Identifier: Apache-2.0

"""Files whose readers hang, as with a driver that does not answer."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from os_acc import native_threads

#: Seconds after which a process that waits for a read may go on, and the test fails.
LONG = 300.0


@contextlib.contextmanager
def silent(*files: Path) -> Iterator[None]:
    """Let reads of files hang in a block; check that one hangs at its end.

    Opening a FIFO for reading waits for a writer.
    """
    contents = {each: each.read_bytes() for each in files}
    for each in files:
        each.unlink()
        os.mkfifo(each)
    threads = native_threads.before_eventlet("threading") or threading
    rescue = threads.Timer(LONG, lambda: list(map(_let_go, files)))
    rescue.start()
    hung = False
    try:
        yield
    finally:
        rescue.cancel()
        for each, content in contents.items():
            hung = _let_go(each) or hung
            each.unlink()
            each.write_bytes(content)
    assert hung


def _let_go(fifo: Path) -> bool:
    """Let the readers of a FIFO go on; return whether there is one."""
    try:
        # Fails if no process reads: fifo(7).
        os.close(os.open(fifo, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True
