# SPDX-License-Identifier: Apache-2.0

"""Calls that may block their thread, also in a process that eventlet has changed.

nova-compute runs under eventlet in Nova 31 to 33, and on request in Nova 34. There the
threads of Python are greenlets of one thread of the kernel, and a read of sysfs that
hangs would stop all of them. Such a call gets a thread of the kernel, for which a
greenlet waits. The call must share no lock with other code, and call the helper by
:func:`hand_over` alone: both switch greenlets, which only their own thread can do.
"""

from __future__ import annotations

import collections
import functools
import sys
import time
from collections.abc import Callable
from concurrent import futures
from typing import Any, Final, Generic, NoReturn, ParamSpec, TypeVar

from os_acc import deadlines, exception

_P = ParamSpec("_P")
_T = TypeVar("_T")

#: Seconds between two looks at a thread of the kernel; the pauses double.
_SHORTEST_PAUSE: Final = 0.0005
_LONGEST_PAUSE: Final = 0.05


def before_eventlet(module: str) -> Any:
    """Return a module of Python as it was before eventlet changed it; else None."""
    patcher = sys.modules.get("eventlet.patcher")
    if patcher is None or not patcher.is_monkey_patched("thread"):
        return None
    return patcher.original(module)


def is_needed() -> bool:
    """Return whether the threads of Python are greenlets in this process."""
    return before_eventlet("_thread") is not None


def begin(
    function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
) -> futures.Future[_T]:
    """Begin a call that may block its thread; see :func:`.deadlines.begin`.

    :raises DeviceStuck: the thread cannot be started.
    """
    call = functools.partial(function, *args, **kwargs)
    threads = before_eventlet("_thread")
    if threads is None:
        return deadlines.begin(call)
    native = _NativeCall(call, threads)
    try:
        threads.start_new_thread(native.run, ())
    except RuntimeError as error:
        raise exception.DeviceStuck(
            f"cannot start a thread: {error}", hint=deadlines.LIMITS
        ) from error
    return deadlines.begin(native.wait)


def hand_over(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a function; from a thread of :func:`begin`, in its greenlet."""
    threads = before_eventlet("_thread")
    native = threads and _native_calls.get(threads.get_ident())
    if native is None:
        return function(*args, **kwargs)
    handed = _Handed(functools.partial(function, *args, **kwargs), threads)
    native.handed.append(handed)
    handed.over.acquire()
    return handed.result()


class _Handed(Generic[_T]):
    """A call, its result, and a lock that is held until there is one."""

    def __init__(self, call: Callable[[], _T], threads: Any) -> None:
        self._call = call
        self._outcome: Callable[[], _T] = call
        self.over = threads.allocate_lock()
        self.over.acquire()

    def run(self) -> None:
        try:
            value = self._call()
        except BaseException as error:  # noqa: BLE001 - forwarded to the other thread
            self._outcome = functools.partial(_raise, error)
        else:
            self._outcome = lambda: value
        finally:
            self.over.release()

    def result(self) -> _T:
        return self._outcome()


class _NativeCall(_Handed[_T]):
    """A call in a thread of the kernel.

    :ivar handed: calls that the greenlet that waits has to make for it.
    """

    def __init__(self, call: Callable[[], _T], threads: Any) -> None:
        super().__init__(call, threads)
        self._threads = threads
        self.handed: collections.deque[_Handed[Any]] = collections.deque()

    def run(self) -> None:
        number = self._threads.get_ident()
        _native_calls[number] = self
        try:
            super().run()
        finally:
            del _native_calls[number]
            _close_hub()

    def wait(self) -> _T:
        """Return the result; a greenlet cannot wait for a thread without a pause."""
        pause = _SHORTEST_PAUSE
        while self.over.locked():
            for each in deadlines.drain(self.handed):
                each.run()
                pause = _SHORTEST_PAUSE
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        return self.result()


#: By the number of the thread of the kernel.
_native_calls: dict[int, _NativeCall[Any]] = {}


def _close_hub() -> None:
    """Close the hub that a sleep or a lock of eventlet has made for this thread."""
    threads = sys.modules["eventlet.hubs"]._threadlocal
    hub = getattr(threads, "hub", None)
    if hub is None:
        return
    if hub.running:
        hub.abort(wait=True)
    # Each hub has a descriptor of epoll(7).
    if close := getattr(getattr(hub, "poll", None), "close", None):
        close()
    del threads.hub


def _raise(error: BaseException) -> NoReturn:
    raise error
