# SPDX-License-Identifier: Apache-2.0

"""A time limit for a call that may never return."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent import futures
from typing import TypeVar

_Result = TypeVar("_Result")


def in_time(call: Callable[[], _Result], seconds: float = 240.0) -> _Result:
    """Return the result of a call, or raise its error.

    :param seconds: many times the duration of a call that does not hang.
    :raises TimeoutError: it has not ended; its thread is abandoned.
    """
    ended: futures.Future[_Result] = futures.Future()

    def run() -> None:
        try:
            ended.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            ended.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return ended.result(seconds)
