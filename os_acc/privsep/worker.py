# SPDX-License-Identifier: Apache-2.0

"""Run privileged writes in a child process that may block forever.

A write to sysfs can block forever inside the kernel, out of reach of signals. So
every call that writes runs in one forked child:

* the child holds a lock on each device until it ends, even if its parents have
  died, so that no other process writes to the device while it lives;
* it closes all other descriptors, so that a blocked child keeps neither the
  helper's channel nor a sibling's pipe open;
* it neither imports nor logs (another thread may have held those locks at
  the moment of the fork), exits by ``_exit``, and is never signalled: signals
  from a terminal or a service manager to all processes at once stay blocked.

The lock files also carry the epoch of the last operation. A call that a client queued
before it died, and whose work has been rolled back since, carries a lower epoch and is
refused. An epoch more than a day ahead of both the clock and the last epoch is refused
as well: if it were recorded, every later call would be refused as older.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import math
import os
import select
import signal
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from oslo_privsep import capabilities

from os_acc import deadlines
from os_acc.objects import epoch as epochs
from os_acc.objects.mdev import DeviceAddress
from os_acc.objects.pci import PciAddress
from os_acc.privsep import privileged_conf, record
from os_acc.privsep.locks import open_lock, open_parent
from os_acc.privsep.outcome import CallRefused, CallResult, Outcome, refused

# Two live callers never use one device at the same time: the holder of the
# lock is a child whose caller is gone, or it is stuck.
_LOCK_SECONDS = 2.0
# Size of an epoch in a lock file: 20 digits and a checksum.
_RECORD = 30
# Maximum length of a reported exception.
_TEXT_LIMIT = 500
_ENDINGS = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM})

Job = Callable[[int], CallResult]
Results = Callable[[], Iterator[CallResult]]


class Clock:
    """The latest time of day that this process has read.

    It does not go back with the host's clock: an epoch that was accepted once
    stays acceptable.

    :param read: returns nanoseconds since 1970, UTC; None: the host's clock.
    """

    def __init__(self, read: Callable[[], int] | None = None) -> None:
        self._read = read
        self._latest = 0
        # The helper has many threads. A forked child never reads the clock.
        self._guard = threading.Lock()

    def now(self) -> int:
        """Return microseconds since 1970, UTC."""
        read = self._read or time.time_ns
        with self._guard:
            self._latest = max(self._latest, read() // 1000)
            return self._latest


clock = Clock()


# Of the call whose child this process is: its deadline, and its locks and files.
_deadline = math.inf
_kept: tuple[int, ...] = ()

#: Children that outlived their deadline, to be reaped when they end.
_stuck: set[int] = set()


def run(
    addresses: Sequence[DeviceAddress],
    epoch: int | None,
    seconds: float,
    job: Job,
    files: Sequence[int] = (),
    check: Job | None = None,
    parents: Collection[PciAddress | str] = (),
    beside: Sequence[DeviceAddress] = (),
) -> tuple[CallResult, ...]:
    """Run ``job(i)`` for each device in one child, in order, until one fails.

    :param epoch: number of the store's transaction that authorizes the call; None: the
        job only reads.
    :param seconds: limit for waiting for the devices' locks and the child.
    :param files: descriptors that the job needs; all others are closed.
    :param check: runs for all devices before the first job, in the same child; if it
        fails for one of them, no job runs.
    :param parents: functions, or virtual parents, whose devices get no other such call
        meanwhile. Their locks carry no epoch: those of other devices are unrelated.
    :param beside: devices that are locked as well, and have no job.
    :returns: one :class:`CallResult` for each address.
    """
    deadline = time.monotonic() + seconds
    _reap()
    # The child reads no file of root's.
    privileged_conf.current()
    locks: list[int] = []
    outer: list[int] = []
    pipes: list[int] = []
    try:
        # One order for all calls. A call that waits for others holds no device.
        for parent in sorted(parents, key=str):
            _lock(partial(open_parent, parent), deadline, outer, str(parent))
        for address in sorted((*addresses, *beside), key=record.name_of):
            patience = min(deadline, time.monotonic() + _LOCK_SECONDS)
            _lock(partial(open_lock, address), patience, locks)
        if epoch is not None:
            _enter(epoch, locks)
        results = partial(_results, len(addresses), job, check)
        child = _begin(results, (*outer, *locks, *files), deadline, pipes)
        return _answers(child, len(addresses), deadline)
    except CallRefused as refusal:
        return (refusal.result,) * len(addresses)
    finally:
        for fd in (*outer, *locks, *pipes):
            os.close(fd)


def is_late() -> bool:
    """Return whether no caller waits for this child any more: its deadline passed."""
    return time.monotonic() > _deadline


def kept() -> tuple[int, ...]:
    """Return the locks and files of the call whose child this process is."""
    return _kept


def leave_behind(files: Sequence[int], wait: Callable[[], None]) -> None:
    """Fork a process that keeps files open until ``wait`` returns, and nothing else.

    It outlives the call and the helper, in a session of its own and without any
    capability (setsid(2), capabilities(7)). SIGTERM ends it, so that it delays no stop
    of the service.

    :raises OSError: no process or memory was left to create it.
    """
    if os.fork():
        return
    try:
        _close_all_but(set(files))
        os.setsid()
        capabilities.drop_all_caps_except((), (), ())
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        wait()
    finally:
        os._exit(0)


def _lock(
    opened: Callable[[], int], deadline: float, locks: list[int], observed: str = ""
) -> None:
    try:
        fd = opened()
    except OSError as error:
        number = error.errno or errno.EIO
        raise CallRefused(Outcome.REFUSED, number, "lock", observed) from error
    locks.append(fd)
    if not deadlines.lock_file(fd, fcntl.LOCK_EX, deadline):
        raise CallRefused(Outcome.BUSY, errno.EBUSY, "lock", observed)


def _enter(epoch: int, locks: Sequence[int]) -> None:
    """Record an epoch in all locked files, or refuse it and record nothing."""
    try:
        # The maximum over all devices of the call: each then accepts it.
        seen = max((_epoch(fd) for fd in locks), default=0)
        accepted = epochs.AcceptedEpochs.at(seen, clock.now())
        if not accepted.seen <= epoch <= accepted.limit:
            outcome = Outcome.STALE if epoch < seen else Outcome.AHEAD
            raise CallRefused(outcome, 0, "lock", f"{accepted.seen} {accepted.limit}")
        for fd in locks:
            os.pwrite(fd, _record(b"%020d" % epoch), 0)
    except OSError as error:
        raise CallRefused(Outcome.REFUSED, error.errno or errno.EIO, "lock") from error


def _epoch(fd: int) -> int:
    """Return the epoch in a lock file; 0 if the checksum does not match.

    A corrupt high number would refuse every later call.
    """
    number, _, check = os.pread(fd, _RECORD, 0).partition(b" ")
    return int(number) if _record(number) == b"%b %b" % (number, check) else 0


def _record(number: bytes) -> bytes:
    return b"%b %08x\n" % (number, zlib.crc32(number))


def _begin(
    results: Results, keep: Sequence[int], deadline: float, pipes: list[int]
) -> tuple[int, int]:
    """Fork the child; return its number, and the pipe through which its results come.

    :param keep: the descriptors that stay open in it.
    :param pipes: gets the pipe, which the caller closes.
    """
    global _deadline, _kept
    # Blocked before the fork, so that the child never runs without the mask.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDINGS)
    try:
        readable, writable = os.pipe2(os.O_CLOEXEC)
        pipes.append(readable)
        try:
            pid = os.fork()
            if pid:
                return pid, readable
            try:
                _deadline, _kept = deadline, tuple(keep)
                _close_all_but({writable, *keep})
                for result in results():
                    os.write(writable, json.dumps(result).encode() + b"\n")
            finally:
                os._exit(0)
        finally:
            os.close(writable)
    except OSError as error:
        # No descriptor, process or memory was left.
        number = error.errno or errno.EAGAIN
        raise CallRefused(Outcome.REFUSED, number, "worker") from error
    finally:
        # A signal that came meanwhile may raise here.
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _results(count: int, job: Job, check: Job | None) -> Iterator[CallResult]:
    """Yield the results of a child's jobs, up to the first failure."""
    steps = (check, job) if check else (job,)
    for step, index in itertools.product(steps, range(count)):
        try:
            result = step(index)
        except CallRefused as refusal:
            result = refusal.result
        except OSError as error:
            result = refused(error)
        except MemoryError:
            result = CallResult(Outcome.REFUSED, errno.ENOMEM, "worker")
        except BaseException as error:  # noqa: BLE001 - reported to the parent
            text = f"{type(error).__name__}: {error}"[:_TEXT_LIMIT]
            result = CallResult(Outcome.FAILED, 0, "worker", text)
        has_failed = result.outcome != Outcome.OK
        if has_failed and step is check:
            yield from (CallResult(Outcome.UNREACHED),) * index
        if has_failed or step is job:
            yield result
        if has_failed:
            return


def _close_all_but(keep: set[int]) -> None:
    start = 0
    for fd in sorted(keep):
        # CPython takes closerange(0, 0) for all descriptors: close_range(0, -1).
        if start < fd:
            os.closerange(start, fd)
        start = fd + 1
    os.closerange(start, os.sysconf("SC_OPEN_MAX"))


def _answers(
    child: tuple[int, int], count: int, deadline: float
) -> tuple[CallResult, ...]:
    """Return the results of a child; one that outlives the deadline is left alone."""
    pid, readable = child
    data, ended = b"", False
    poll = select.poll()
    poll.register(readable, select.POLLIN)
    while not ended:
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            break
        chunk = os.read(readable, 65536)
        data += chunk
        ended = not chunk
    if ended:
        # With SIGCHLD ignored, the kernel reaps it.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    else:
        _stuck.add(pid)
    lines = data.decode().split("\n")[:-1]
    return _complete([CallResult(*json.loads(each)) for each in lines], count, ended)


def _complete(
    answers: list[CallResult], count: int, ended: bool
) -> tuple[CallResult, ...]:
    failed = bool(answers) and answers[-1].outcome != Outcome.OK
    if len(answers) < count and not failed:
        answers.append(
            CallResult(Outcome.NO_EFFECT, 0, "child", "ended without an answer")
            if ended
            else CallResult(Outcome.STUCK, errno.ETIMEDOUT)
        )
    rest = count - len(answers)
    return (*answers, *(CallResult(Outcome.UNREACHED),) * rest)


def _reap() -> None:
    for pid in tuple(_stuck):
        try:
            done, _ = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:
            done = pid
        if done:
            _stuck.discard(pid)
