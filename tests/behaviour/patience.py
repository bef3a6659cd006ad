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


"""An end to waiting for a call that may never return."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures
from typing import TypeVar

_Result = TypeVar("_Result")


def in_time(call: Callable[[], _Result], seconds: float = 240.0) -> _Result:
    """What a call returns or raises.

    :param seconds: many times what it needs where nothing hangs.
    :raises TimeoutError: it has not ended; its thread is left to itself.
    """
    ended: futures.Future[_Result] = futures.Future()

    def run() -> None:
        try:
            ended.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            ended.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return ended.result(seconds)
