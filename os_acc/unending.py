# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Calls that may never return, in threads that can be left behind.

Python can end neither a thread nor a system call. What may hang for ever (a
vendor's code, a read of sysfs behind a lock that a stuck write holds) runs in
a daemon thread: its caller waits as long as it likes, and the process can end.
The threads of :mod:`concurrent.futures` are none: the interpreter joins them
at its end, and takes no more work from then on.

:class:`threading.Thread` is not used. Its ``start()`` waits without a bound
until the new thread signals its start, and a thread that runs out of memory
ends before it does. :func:`start` is the only place that starts threads.
"""

from __future__ import annotations

import _thread
import collections
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Final, ParamSpec, TypeVar

from os_acc import exception

_P = ParamSpec("_P")
_T = TypeVar("_T")
_In = TypeVar("_In")

#: Seconds after which a thread that has not signalled its start is given up.
START_SECONDS: Final = 10.0
#: Seconds between two looks at whether threads with unfinished work still run.
_LOOK: Final = 1.0
_LIMITS: Final = "look at the limits of the service's threads (TasksMax, ulimit -u)"
_MEMORY: Final = "look at the memory of the service (MemoryMax, ulimit -v)"


def start(run: Callable[[], object], over: threading.Lock | None = None) -> None:
    """Run a callable in a daemon thread; wait a bounded time for its start.

    The callable handles its own exceptions. It either has begun when this
    returns, or never begins.

    :param over: a held lock, released when the thread has ended.
    :raises DeviceStuck: the service has as many threads as it may have, or
        the thread ended, or did not run, before it signalled its start.
    """
    begun, claim, over = threading.Lock(), threading.Lock(), over or threading.Lock()
    begun.acquire()
    over.acquire(blocking=False)
    try:
        _thread.start_new_thread(_bootstrap, (run, begun, claim, over))
    except (RuntimeError, MemoryError) as error:
        over.release()
        raise exception.DeviceStuck(
            f"cannot start a thread: {error}", hint=_LIMITS
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
    # Up to here, and in the last step, no memory is needed.
    begun.release()
    try:
        # As threading.Thread does, for debuggers and coverage.
        sys.settrace(threading.gettrace())
        sys.setprofile(threading.getprofile())
        run()
    finally:
        over.release()


def begin(
    function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
) -> futures.Future[_T]:
    """Begin a call; its result, or what it raises, comes with the future.

    :raises DeviceStuck: the thread cannot be started, as :func:`start` says.
    """
    answer: futures.Future[_T] = futures.Future()
    call = functools.partial(function, *args, **kwargs)
    start(functools.partial(_run, answer, call))
    return answer


def side_by_side(
    items: Sequence[_In], action: Callable[[_In], _T], workers: int
) -> list[_T]:
    """Do it for all items, so many at a time; then raise the first error.

    A signal's handler may raise meanwhile, as for Ctrl-C. Then nothing more is
    begun, but what has begun is waited for: the caller's lock covers it. So
    an action has to have an end of its own.
    """
    if len(items) < 2:
        return [action(item) for item in items]
    answers: list[futures.Future[_T]] = [futures.Future() for _ in items]
    waiting = collections.deque(zip(answers, items, strict=True))

    def work() -> None:
        for answer, item in _drain(waiting):
            _run(answer, functools.partial(action, item))

    threads: list[threading.Lock] = []
    interruption: BaseException | None = None
    while True:
        try:
            if interruption is not None:
                for answer, _ in _drain(waiting):
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
    """Begin it so many times; once here and now where no thread can be had.

    :param threads: gets a lock for each, which is held while the thread runs.
    """
    for begun in range(count):
        # Listed first: a signal's handler may raise while the thread starts.
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
    """Wait for all answers, and no longer than the threads run."""
    while futures.wait(answers, _LOOK).not_done:
        if any(each.locked() for each in threads):
            continue
        for answer in answers:
            if not answer.done():
                answer.set_exception(
                    exception.DeviceStuck(
                        "a thread ended in the middle of its work", hint=_MEMORY
                    )
                )


def _drain(waiting: collections.deque[_T]) -> Iterator[_T]:
    while True:
        try:
            yield waiting.popleft()
        except IndexError:
            return


def _run(answer: futures.Future[_T], function: Callable[[], _T]) -> None:
    try:
        result = function()
    except BaseException as error:  # noqa: BLE001 - it is for whoever waits
        answer.set_exception(error)
    else:
        answer.set_result(result)
