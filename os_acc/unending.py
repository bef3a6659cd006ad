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
"""

from __future__ import annotations

import collections
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import ParamSpec, TypeVar

from os_acc import exception

_P = ParamSpec("_P")
_T = TypeVar("_T")
_In = TypeVar("_In")


def begin(
    function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
) -> futures.Future[_T]:
    """Begin a call; its result, or what it raises, comes with the future.

    :raises DeviceStuck: the service has as many threads as it may have.
    """
    answer: futures.Future[_T] = futures.Future()
    call = functools.partial(function, *args, **kwargs)
    thread = threading.Thread(target=_run, args=(answer, call), daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise exception.DeviceStuck(
            f"what may never return cannot be begun: {error}",
            hint="look at the limits of the service's threads (TasksMax, ulimit -u)",
        ) from error
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

    interruption: BaseException | None = None
    while True:
        try:
            if interruption is not None:
                for answer, _ in _drain(waiting):
                    answer.set_exception(interruption)
            _begin_some(work, min(workers, len(waiting)))
            futures.wait(answers)
            break
        except BaseException as error:  # noqa: BLE001 - raised when all have ended
            interruption = interruption or error
    if interruption is not None:
        raise interruption
    return [answer.result() for answer in answers]


def _begin_some(work: Callable[[], None], count: int) -> None:
    """Begin it so many times; once here and now where no thread can be had."""
    for begun in range(count):
        try:
            begin(work)
        except exception.DeviceStuck:
            if not begun:
                work()
            return


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
