# SPDX-License-Identifier: Apache-2.0

"""Where hosts are simulated: in memory, where there is any.

Each process that runs tests has a directory of its own, and keeps it locked
as long as it, or anything that it has started, lives. A run that was killed
leaves its directory behind; the next one takes it away.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator

_PREFIX = "os-acc-stress-"


def memory() -> str:
    """Where directories lie in memory, or where temporary ones lie."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()


@contextlib.contextmanager
def own(above: str) -> Iterator[str]:
    """A directory of this process, for as long as the context lasts."""
    clear(above)
    directory, lock = _make(above)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)
        os.close(lock)


def clear(above: str) -> None:
    """Take away what the dead have left; what is another user's stays."""
    for directory in glob.glob(os.path.join(glob.escape(above), f"{_PREFIX}*")):
        with contextlib.suppress(OSError):
            lock = _lock(directory)
            try:
                shutil.rmtree(directory)
            finally:
                os.close(lock)


def _make(above: str) -> tuple[str, int]:
    while True:
        directory = tempfile.mkdtemp(prefix=_PREFIX, dir=above)
        # Somebody who clears away may have been faster.
        with contextlib.suppress(OSError):
            lock = _lock(directory)
            if os.path.exists(directory):
                return directory, lock
            os.close(lock)


def _lock(directory: str) -> int:
    """Lock a directory until the descriptor is closed.

    :raises OSError: it is gone, another user's, or locked.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
