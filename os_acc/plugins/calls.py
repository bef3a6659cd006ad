# SPDX-License-Identifier: Apache-2.0

"""Calls of vendors' code that survive its failures."""

from __future__ import annotations

import dataclasses
import reprlib
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any, Final, TypeVar

from os_acc import deadlines, exception

_T = TypeVar("_T")

_SHOWN: Final = reprlib.Repr()
_SHOWN.maxother = exception.LONGEST_MESSAGE


@dataclasses.dataclass(slots=True, eq=False, weakref_slot=True)
class PluginCalls:
    """The calls of one plugin, each with a deadline.

    A hanging call is abandoned; until it returns, the plugin gets no other call
    that could hang as well.
    """

    plugin_name: str
    _hanging: set[futures.Future[Any]] = dataclasses.field(default_factory=set)
    _guard: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        deadlines.reset_after_fork(self)

    def forget_parent(self) -> None:
        """Forget all hanging calls."""
        self._hanging = set()
        self._guard = threading.Lock()

    @property
    def hangs(self) -> bool:
        """Whether a call has exceeded its deadline and has not returned."""
        with self._guard:
            self._hanging = {each for each in self._hanging if not each.done()}
            return bool(self._hanging)

    def call(self, seconds: float, function: Callable[..., _T], *args: object) -> _T:
        """Call the plugin, and wait for at most ``seconds``.

        :raises PluginFailed: it raised an exception, did not return in time, or
            hangs in an earlier call.
        :raises DeviceStuck: no thread is available.
        """
        if self.hangs:
            raise exception.PluginFailed(
                f"the plugin {self.plugin_name} hangs in an earlier call"
            )
        answer: futures.Future[_T] = deadlines.begin(self._run, function, *args)
        try:
            return answer.result(max(0.0, seconds))
        except futures.TimeoutError as error:
            with self._guard:
                self._hanging.add(answer)
            raise exception.PluginFailed(
                f"the plugin {self.plugin_name} did not return in {seconds:.0f} s"
            ) from error

    def _run(self, function: Callable[..., _T], *args: object) -> _T:
        try:
            return function(*args)
        # Some libraries just exit, and CancelledError is not an Exception either. The
        # thread is the call's own, so that the exception is meant for no other code.
        except BaseException as error:
            failure = exception.PluginFailed(
                # Also if its repr() fails.
                f"the plugin {self.plugin_name} failed: {_SHOWN.repr(error)}"
            )
            if exception.is_exhaustion(error):
                failure.set_exhausted()
            raise failure from error
