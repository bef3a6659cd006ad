# SPDX-License-Identifier: Apache-2.0

"""The same question again, while there is time."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from os_acc import exception
from os_acc.rest import transport

_T = TypeVar("_T")

# Seconds: keystoneauth1's own, where no delay is set.
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Retries:
    """How often, and after how long, the same is asked for again.

    keystoneauth1 could do it, but sleeps beyond every deadline.

    :ivar connect: for a connection that was refused, dropped or silent.
    :ivar status: for an answer with one of the codes.
    """

    connect: int
    connect_delay: float | None
    status: int
    status_delay: float | None
    codes: frozenset[int]


@dataclasses.dataclass(frozen=True, slots=True)
class Failures:
    """What a service's client raises, and what that means.

    :ivar raised: everything that it may raise.
    :ivar is_connection: whether nobody has answered.
    :ivar translated: the error of ours, from what was raised, the status of
        the last answer where there is one, what was asked for, and the
        deadline.
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
    """The answer; asked for again as often as the options say.

    :param about: what is asked for, for an error's message.
    :raises OsAccError: what the last failure was translated to.
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
    """What is left of the retries of one question."""

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
        """Seconds after which to ask again; None not to.

        :param code: the status of the last answer, where there is one.
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
