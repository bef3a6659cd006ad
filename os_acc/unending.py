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
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures
from typing import TypeVar

_T = TypeVar("_T")


def begin(function: Callable[..., _T], *args: object) -> futures.Future[_T]:
    """Begin a call; its result, or what it raises, comes with the future."""
    answer: futures.Future[_T] = futures.Future()
    threading.Thread(target=_run, args=(answer, function, args), daemon=True).start()
    return answer


def _run(
    answer: futures.Future[_T], function: Callable[..., _T], args: tuple[object, ...]
) -> None:
    try:
        result = function(*args)
    except BaseException as error:  # noqa: BLE001 - it is for whoever waits
        answer.set_exception(error)
    else:
        answer.set_result(result)
