# SPDX-License-Identifier: Apache-2.0

"""Deadlines of an operation, detached calls, and forks.

An operation has one deadline on the clock of :func:`time.monotonic`. No step
starts after it, and no caller waits for a step longer than the grace period:
half of it for the result of a step that started in time, the rest for recording
the result.

Python can terminate neither a thread nor a system call. A call that may hang (a
plugin, a read of sysfs behind a lock held by a stuck write) runs in a daemon
thread of :func:`start`: its caller waits until its own deadline, and the process can
exit. :mod:`concurrent.futures` has no daemon threads. The ``start()`` of
:class:`threading.Thread` waits without a timeout for the new thread, which ends
before it signals its start if it runs out of memory.
"""

from __future__ import annotations

import _thread
import collections
import contextlib
import fcntl
import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Final, ParamSpec, Protocol, TypeVar

from os_acc import exception

_P = ParamSpec("_P")
_T = TypeVar("_T")
_In = TypeVar("_In")

#: Seconds after its deadline within which an operation returns.
GRACE = 10.0
#: Seconds after the deadline in which a step may still return. The kernel's own
#: time ends at the deadline, so that "stuck" can still be reported.
ANSWER = 5.0

#: Seconds between two attempts to lock a file.
_POLL_INTERVAL = 0.005


def left(deadline: float) -> float:
    """Return the seconds in which a step may start.

    :raises DeviceStuck: the deadline has passed.
    """
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise exception.DeviceStuck(
            "no time is left for the next step",
            hint="retry; if it recurs, raise the timeout of the operation",
        )
    return seconds


def lock_file(fd: int, operation: int, deadline: float) -> bool:
    """Lock an open file (flock(2)); return False if the deadline passes before.

    :param operation: ``LOCK_SH`` or ``LOCK_EX`` of :mod:`fcntl`.
    """
    while True:
        try:
            fcntl.flock(fd, operation | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_INTERVAL)


@contextlib.contextmanager
def alone(
    lock: threading.Lock, deadline: float, busy: exception.OsAccError
) -> Iterator[None]:
    """Hold a lock shared by threads of this process.

    :param busy: raised if another thread still holds it at the deadline.
    """
    if not lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
        raise busy
    try:
        yield
    finally:
        lock.release()


def patience(deadline: float, most: float) -> float:
    """Return the seconds to wait for a step that starts now.

    :param most: the maximum for the step at any time.
    :raises DeviceStuck: the deadline has passed.
    """
    return min(most, left(deadline) + ANSWER)


def for_record(deadline: float, most: float) -> float:
    """Return the time to stop waiting for the store, on the deadline's clock.

    :param most: the maximum seconds for the store at any time.
    """
    return min(deadline + GRACE, time.monotonic() + most)


# -- detached calls --------------------------------------------------------

#: Seconds after which a thread that has not signalled its start is abandoned.
START_SECONDS: Final = 10.0
#: Seconds between checks whether threads with unfinished work still run.
_LOOK: Final = 1.0
#: The hint of an error if the service can start no further thread.
LIMITS: Final = "raise the service's limit of threads (TasksMax, ulimit -u)"
_MEMORY: Final = "raise the service's limit of memory (MemoryMax, ulimit -v)"


def start(run: Callable[[], object], over: threading.Lock | None = None) -> None:
    """Run a callable in a daemon thread; wait a bounded time for its start.

    The callable handles its own exceptions. When this function returns, the
    callable has started; after an exception it never will.

    :param over: a held lock, released when the thread has ended.
    :raises DeviceStuck: the service has reached its limit of threads, or the
        thread ended, or did not run, before it signalled its start.
    """
    begun, claim, over = threading.Lock(), threading.Lock(), over or threading.Lock()
    begun.acquire()
    over.acquire(blocking=False)
    try:
        _thread.start_new_thread(_bootstrap, (run, begun, claim, over))
    except (RuntimeError, MemoryError) as error:
        over.release()
        raise exception.DeviceStuck(
            f"cannot start a thread: {error}", hint=LIMITS
        ) from error
    # The side that takes the claim decides: a late thread does not run.
    if not begun.acquire(timeout=START_SECONDS) and claim.acquire(blocking=False):
        over.release()
        raise exception.DeviceStuck(
            f"a thread did not start in {START_SECONDS:.0f} s", hint=_MEMORY
        )


def _bootstrap(
    run: Callable[[], object],
    begun: threading.Lock,
    claim: threading.Lock,
    over: threading.Lock,
) -> None:
    """Signal the start, then run: the first code of every thread."""
    if not claim.acquire(blocking=False):
        return
    # Up to here, and in the last step, no memory is allocated.
    begun.release()
    try:
        # As threading.Thread does, for debuggers and coverage. Refused while another
        # thread installs a function: this one runs without.
        with contextlib.suppress(RuntimeError):
            sys.settrace(threading.gettrace())
            sys.setprofile(threading.getprofile())
        run()
    finally:
        over.release()


def begin(
    function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
) -> futures.Future[_T]:
    """Start a call and return a future of its result or exception.

    :raises DeviceStuck: the thread cannot be started, as in :func:`start`.
    """
    answer: futures.Future[_T] = futures.Future()
    call = functools.partial(function, *args, **kwargs)
    start(functools.partial(_run, answer, call))
    return answer


def side_by_side(
    items: Sequence[_In], action: Callable[[_In], _T], workers: int = 8
) -> list[_T]:
    """Process all items with ``workers`` threads; then raise the first error.

    A signal handler may raise in the meantime, for example for Ctrl-C. No further
    item is then started, but running ones are awaited, because the caller's lock
    covers them. Each action must therefore be bounded in time.
    """
    if not items:
        return []
    if len(items) == 1:
        return [action(items[0])]
    answers: list[futures.Future[_T]] = [futures.Future() for _ in items]
    waiting = collections.deque(zip(answers, items, strict=True))

    def work() -> None:
        for answer, item in drain(waiting):
            _run(answer, functools.partial(action, item))

    threads: list[threading.Lock] = []
    interruption: BaseException | None = None
    while True:
        try:
            if interruption is not None:
                for answer, _ in drain(waiting):
                    answer.set_exception(interruption)
            _begin_some(work, min(workers, len(waiting)), threads)
            _wait(answers, threads)
            break
        except BaseException as error:  # noqa: BLE001 - raised when all have ended
            interruption = interruption or error
    if interruption is not None:
        raise interruption
    return [answer.result() for answer in answers]


def _begin_some(
    work: Callable[[], None], count: int, threads: list[threading.Lock]
) -> None:
    """Start this many threads; without any, run once in the calling thread.

    :param threads: receives a lock for each, held while the thread runs.
    """
    for begun in range(count):
        # Listed first: a signal handler may raise while the thread starts.
        threads.append(over := threading.Lock())
        over.acquire()
        try:
            start(work, over)
        except exception.DeviceStuck:
            if not begun:
                work()
            return


def _wait(
    answers: Sequence[futures.Future[_T]], threads: Sequence[threading.Lock]
) -> None:
    """Wait for all answers, but no longer than the threads run."""
    while futures.wait(answers, _LOOK).not_done:
        if any(each.locked() for each in threads):
            continue
        for answer in answers:
            if not answer.done():
                answer.set_exception(
                    exception.DeviceStuck(
                        "a thread ended before its work was finished", hint=_MEMORY
                    )
                )


def drain(waiting: collections.deque[_T]) -> Iterator[_T]:
    """Remove and return one item after the other."""
    while True:
        try:
            yield waiting.popleft()
        except IndexError:
            return


def _run(answer: futures.Future[_T], function: Callable[[], _T]) -> None:
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001 - forwarded to the waiting caller
        answer.set_exception(error)
    else:
        answer.set_result(result)


# -- forks ----------------------------------------------------------------------


class ForkAware(Protocol):
    """An object with locks, threads or connections of the current process.

    A lock that a thread of the parent held stays locked in a child, and a call that
    such a thread made never returns there.
    """

    def forget_parent(self) -> None:
        """Replace all of these; called in the child before any other code."""


_fork_aware: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def reset_after_fork(each: ForkAware) -> None:
    """Call an object's ``forget_parent`` in every child forked during its life."""
    _fork_aware.add(each)


def fork_aware() -> list[ForkAware]:
    """Return all live objects that are reset in forked children."""
    return list(_fork_aware)


def _forget_parent() -> None:
    # A stack runs every callback, also after one that has raised an error.
    with contextlib.ExitStack() as stack:
        for each in fork_aware():
            stack.callback(each.forget_parent)


os.register_at_fork(after_in_child=_forget_parent)
