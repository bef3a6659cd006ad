# SPDX-License-Identifier: Apache-2.0

"""Locks that hold across threads and processes, each with a deadline.

A lock is a file in one directory, locked with a POSIX record lock
(fcntl(2), F_SETLK). The kernel releases it when the process ends for any
reason, and a forked child does not inherit it. The lock belongs to the process,
and closing *any* descriptor of the file releases it. Therefore the threads of
one process queue for a file first, and only the thread at the head of the queue
opens it.

Lock files of devices stay: a host has a fixed number of them. The holder of a
consumer's or image's lock removes its file before releasing it. A waiter then
acquires a lock on an unlinked file, detects that the name refers to another file
or to none, and starts over.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import threading
import time
import weakref
from collections.abc import Iterable, Iterator

from os_acc import exception
from os_acc.objects.bitstream import Digest
from os_acc.objects.pci import PciAddress
from os_acc.store import errors

#: The longest pause between two attempts at a lock, in seconds.
POLL_INTERVAL = 0.02
_FIRST_PAUSE = POLL_INTERVAL / 20

#: The lock for giving a lease to a device without one, by an operator's command.
UNKNOWN_LOCK = "1-unknown-devices"

#: The lock for adding files to the bitstream cache and removing them.
CACHE_LOCK = "4-bitstreams"

_CONSUMER = "1-consumer-"
_BITSTREAM = "3-bitstream-"
_NAME = re.compile(r"[0-9]-[0-9a-z.:-]{0,99}[0-9a-z]", re.ASCII)


def consumer_lock(uuid: str) -> str:
    """Return the lock of an instance or migration; acquired before all others."""
    return f"{_CONSUMER}{uuid}"


def device_lock(address: PciAddress) -> str:
    """Return the lock of a card, or of one of its regions."""
    return f"2-device-{address.domain:08x}{str(address)[-8:]}"


def bitstream_lock(digest: Digest) -> str:
    """Return the lock for fetching or verifying the image with this digest."""
    # File names are shorter than some digests; images whose digests share a
    # prefix merely wait for each other.
    algorithm = digest.algorithm.replace("_", "-")
    return f"{_BITSTREAM}{algorithm}-{digest.value[:64]}"


class Locks:
    """The locks of one state directory; their own directory is created if missing.

    The leading digit of a lock's name is its rank in the lock order, so sorting
    the names rules out deadlocks within one :meth:`hold`. A thread that
    acquires a lock which it already holds blocks until the deadline.

    :param state_path: absolute path; readable by the owner's group at most.
    """

    def __init__(self, state_path: str) -> None:
        self._directory = os.path.join(state_path, "locks")

    @contextlib.contextmanager
    def hold(self, names: Iterable[str], deadline: float) -> Iterator[None]:
        """Hold every named lock, or none of them.

        :param deadline: on the clock of :func:`time.monotonic`, in seconds.
        :raises InvalidInput: one of them is not the name of a lock.
        :raises LockTimeout: one of them was not free before the deadline.
        :raises StateUnavailable: the lock files cannot be used.
        """
        with contextlib.ExitStack() as held:
            for name in self._in_order(names):
                path = os.path.join(self._directory, name)
                if not held.enter_context(_attempt(path, deadline)):
                    raise exception.LockTimeout(f"the lock {name} was not free in time")
            yield

    @contextlib.contextmanager
    def try_hold(self, names: Iterable[str]) -> Iterator[bool]:
        """Hold every named lock if all are free now; yield whether they are held.

        :raises InvalidInput, StateUnavailable: see :meth:`hold`.
        """
        with contextlib.ExitStack() as held:
            now = time.monotonic()
            yield all(
                held.enter_context(_attempt(os.path.join(self._directory, name), now))
                for name in self._in_order(names)
            )

    def _in_order(self, names: Iterable[str]) -> list[str]:
        wanted = sorted({*names})
        for name in wanted:
            if not _NAME.fullmatch(name):
                raise exception.InvalidInput(f"{name!r} is not the name of a lock")
        try:
            if not os.path.isdir(self._directory):
                os.makedirs(self._directory, mode=0o750, exist_ok=True)
        except OSError as error:
            raise errors.from_os_error(error, self._directory) from error
        return wanted


class _Process:
    """Locks held and awaited by this process, excluding its parent's."""

    def __init__(self) -> None:
        self.guard = threading.Lock()
        #: The threads that contend for a file queue for its lock here, by its path.
        self.queues = weakref.WeakValueDictionary[str, threading.Lock]()
        #: A file leaves the set before it is closed: a child that is forked in between
        #: must not close another file of the same number.
        self.files: set[int] = set()


_process = _Process()


def _forget_parent() -> None:
    # A thread that does not exist in the child may have held the parent's guard.
    # The files are closed before the child opens any: closing one later would release
    # the lock that the child itself acquired on it.
    global _process
    inherited, _process = _process.files, _Process()
    for fd in inherited:
        os.close(fd)


os.register_at_fork(after_in_child=_forget_parent)


@contextlib.contextmanager
def _attempt(path: str, deadline: float) -> Iterator[bool]:
    """Queue among the threads of this process, then hold the lock of a file."""
    process = _process
    with process.guard:
        queue = process.queues.setdefault(path, threading.Lock())
    patience = min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)
    if not queue.acquire(timeout=patience):
        yield False
        return
    try:
        fd = _acquire(process, path, deadline)
        try:
            yield fd is not None
        finally:
            # A child that was forked here leaves the parent's lock alone.
            if fd is not None and process is _process:
                if os.path.basename(path).startswith((_CONSUMER, _BITSTREAM)):
                    # Only the holder may do this: see the module docstring.
                    with contextlib.suppress(OSError):
                        os.unlink(path)
                process.files.discard(fd)
                os.close(fd)
    finally:
        queue.release()


def _acquire(process: _Process, path: str, deadline: float) -> int | None:
    """Return the locked file; None: another process held it until the deadline."""
    pause = _FIRST_PAUSE
    while True:
        with contextlib.ExitStack() as opened:
            try:
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666)
                process.files.add(fd)
                opened.callback(os.close, fd)
                opened.callback(process.files.discard, fd)
                if _lock(fd, path):
                    if _is_named(fd, path):
                        opened.pop_all()
                        return fd
                    continue
            except OSError as error:
                raise errors.from_os_error(error, path) from error
        if (left := deadline - time.monotonic()) <= 0:
            return None
        time.sleep(min(pause, left))
        pause = min(2 * pause, POLL_INTERVAL)


def _lock(fd: int, path: str) -> bool:
    """Lock a file; return False if another process holds its lock."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            return False
        raise exception.StateUnavailable(
            f"{path} cannot be locked: {error}",
            hint="the state directory has to be on a file system with locks",
        ) from error
    return True


def _is_named(fd: int, path: str) -> bool:
    """Return whether the locked file still has its name."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
