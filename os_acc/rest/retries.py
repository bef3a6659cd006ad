# SPDX-License-Identifier: Apache-2.0

"""Retries of a request within its deadline."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from os_acc import exception
from os_acc.rest import transport

_T = TypeVar("_T")

# Seconds: keystoneauth1's defaults.
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Retries:
    """The number of retries and the delays between them.

    keystoneauth1's own retries sleep past any deadline.

    :ivar connect: retries after a connection was refused, dropped or timed out.
    :ivar status: retries after a response with one of the codes.
    """

    connect: int
    connect_delay: float | None
    status: int
    status_delay: float | None
    codes: frozenset[int]


@dataclasses.dataclass(frozen=True, slots=True)
class Failures:
    """The exceptions of a service's client, and their translation.

    :ivar raised: every exception that the client may raise.
    :ivar is_connection: returns whether no server answered.
    :ivar translated: returns the os_acc error for an exception, the status of
        the last response if there is one, the operation, and the deadline.
    """

    raised: tuple[type[Exception], ...]
    is_connection: Callable[[BaseException], bool]
    translated: Callable[[Exception, int | None, str, float], exception.OsAccError]


def ask(
    question: Callable[[], _T],
    retries: Retries,
    failures: Failures,
    about: str,
    deadline: float,
) -> _T:
    """Send a request, with retries, and return its result.

    :param about: the operation, for error messages.
    :raises OsAccError: the translation of the last failure.
    """
    trial = _Trial(retries, failures.is_connection)
    while True:
        with transport.until(deadline) as asking:
            try:
                return question()
            except exception.OsAccError:
                raise
            except failures.raised as error:
                delay = trial.delay(error, asking.status)
                if delay is None or time.monotonic() + delay >= deadline:
                    raise failures.translated(
                        error, asking.status, about, deadline
                    ) from error
        time.sleep(delay)


class _Trial:
    """The remaining retries of one request."""

    def __init__(
        self, retries: Retries, is_connection: Callable[[BaseException], bool]
    ) -> None:
        self._is_connection = is_connection
        self._codes = retries.codes
        self._left = {"connect": retries.connect, "status": retries.status}
        self._delays = {
            "connect": _delays(retries.connect_delay),
            "status": _delays(retries.status_delay),
        }

    def delay(self, error: Exception, code: int | None) -> float | None:
        """Return the seconds to wait before a retry; None for no retry.

        :param code: the status of the last response, if there is one.
        """
        if self._is_connection(error):
            kind = "connect"
        elif code in self._codes:
            kind = "status"
        else:
            return None
        self._left[kind] -= 1
        return next(self._delays[kind]) if self._left[kind] >= 0 else None


def _delays(fixed: float | None) -> Iterator[float]:
    if fixed is not None:
        return itertools.repeat(fixed)
    return (min(_FIRST_DELAY * 2**n, _LONGEST_DELAY) for n in itertools.count())
