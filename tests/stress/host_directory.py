# SPDX-License-Identifier: Apache-2.0

"""Directories of simulated hosts, in memory if possible.

Each process that runs tests has a directory of its own, and keeps it locked
as long as it, or any process that it has started, lives. A killed run leaves
its directory behind; the next run removes it.
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
    """Return the place of directories in memory, else of temporary ones."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()


@contextlib.contextmanager
def own(above: str) -> Iterator[str]:
    """Make a directory of this process for the duration of the context."""
    clear(above)
    directory, lock = _make(above)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)
        os.close(lock)


def clear(above: str) -> None:
    """Remove the directories of dead processes; other users' ones stay."""
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
        # Another process may have removed it already.
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
