# SPDX-License-Identifier: Apache-2.0

"""Call into vendors' code without being stopped by it."""

from __future__ import annotations

import dataclasses
import os
import threading
import weakref
from collections.abc import Callable
from concurrent import futures
from typing import Any, ParamSpec, TypeVar

from os_acc import deadlines, exception

_P = ParamSpec("_P")
_T = TypeVar("_T")


def run(
    plugin_name: str, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
) -> _T:
    """Call a plugin; whatever it raises becomes one typed error.

    :raises PluginFailed: the plugin raised something.
    """
    try:
        return function(*args, **kwargs)
    # A vendor may raise anything, and some libraries just leave.
    except (Exception, SystemExit) as error:
        failure = exception.PluginFailed(f"the plugin {plugin_name} failed: {error!r}")
        if exception.is_exhaustion(error):
            failure.set_exhausted()
        raise failure from error


_each_calls: weakref.WeakSet[PluginCalls] = weakref.WeakSet()


def _forget_parent() -> None:
    # No thread of the parent's is in the child: none returns there, nor lets
    # go of a guard.
    for each in _each_calls:
        each.forget()


os.register_at_fork(after_in_child=_forget_parent)


@dataclasses.dataclass(slots=True, eq=False, weakref_slot=True)
class PluginCalls:
    """The calls of one plugin, each with a deadline.

    One that hangs is left behind; until it returns, the plugin gets no other
    call that could hang as well.
    """

    plugin_name: str
    _hanging: set[futures.Future[Any]] = dataclasses.field(default_factory=set)
    _guard: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        _each_calls.add(self)

    def forget(self) -> None:
        """Know of no call that hangs."""
        self._hanging = set()
        self._guard = threading.Lock()

    @property
    def hangs(self) -> bool:
        """Whether a call has outlived its deadline and has not returned."""
        with self._guard:
            self._hanging = {each for each in self._hanging if not each.done()}
            return bool(self._hanging)

    def call(self, seconds: float, function: Callable[..., _T], *args: object) -> _T:
        """Call the plugin and wait for it as long as it may take.

        :raises PluginFailed: it raised something, did not return in time, or
            hangs in an earlier call.
        :raises DeviceStuck: there is no thread for it.
        """
        if self.hangs:
            raise exception.PluginFailed(
                f"the plugin {self.plugin_name} hangs in an earlier call"
            )
        answer: futures.Future[_T] = deadlines.begin(
            run, self.plugin_name, function, *args
        )
        try:
            return answer.result(max(0.0, seconds))
        except futures.TimeoutError as error:
            with self._guard:
                self._hanging.add(answer)
            raise exception.PluginFailed(
                f"the plugin {self.plugin_name} did not return in {seconds:.0f} s"
            ) from error
