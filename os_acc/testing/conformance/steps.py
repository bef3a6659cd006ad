# SPDX-License-Identifier: Apache-2.0

"""Checks of plug and unplug: ``prepare()`` and ``release()``, and what they leave open.

A plugin leaves no thread that is no daemon: the interpreter waits for it, and an
``os-acc`` command would never end.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from os_acc import exception
from os_acc.objects.device import AttachHandle, Provider
from os_acc.plugins import base
from os_acc.testing.conformance.common import (
    Around,
    RuleBroken,
    Step,
    contents,
    free_units,
    interposed,
    lacks_capacity,
    offered,
    plug,
    require,
    require_equal,
    require_returned,
    unplug_all,
)
from os_acc.testing.test_host import TestHost

#: Units of one device that a check plugs at once.
SOME: Final = 4
#: Seconds within which ``prepare`` and ``release`` return if no time is left, and a
#: thread ends after the call that started it.
PATIENCE: Final = 10.0
#: Rounds in which a leak shows, after one that fills caches.
_ROUNDS: Final = 2
_DESCRIPTORS: Final = "/proc/self/fd"


def unplug_restores_the_host(host: TestHost, plugin: str) -> None:
    """An unplug restores all that the plug changed, with one unit and with several.

    :raises RuleBroken: no device is offered, or a file of the host is changed.
    """
    for provider in offered(host, plugin):
        amount = min(free_units(provider), SOME)
        while amount:
            fitted = _unplug_restores(host, plugin, provider, amount)
            # The most units for which there is capacity, then one.
            amount = min(1, amount - 1) if fitted else amount - 1


def _unplug_restores(
    host: TestHost, plugin: str, provider: Provider, amount: int
) -> bool:
    """Check a plug of several units; return False if it lacks capacity for them."""
    before = contents(host)
    rule = f"{provider.name} is as before, once unplugged"
    fitted = True
    try:
        plug(host, provider, amount=amount)
    except exception.HostStepFailed as error:
        if amount == 1 or not lacks_capacity(error):
            raise
        fitted = False
        rule = f"{provider.name} is as before, if it lacks capacity for a plug"
    else:
        unplug_all(host)
    require_returned(before, host, rule, plugin=plugin)
    return fitted


def prepare_is_idempotent(host: TestHost, plugin: str) -> None:
    """A second ``prepare()`` succeeds and changes nothing.

    :raises RuleBroken: no device is offered; it fails, or changes the host.
    """
    _called_twice(host, plugin, "prepare")


def release_is_idempotent(host: TestHost, plugin: str) -> None:
    """A second ``release()`` succeeds and changes nothing.

    :raises RuleBroken: no device is offered; it fails, or changes the host.
    """
    _called_twice(host, plugin, "release")


def _called_twice(host: TestHost, plugin: str, method: str) -> None:
    broken: list[RuleBroken] = []

    def twice(real: Step, handle: AttachHandle, steps: base.PrivilegedSteps) -> None:
        real(handle, steps)
        once = contents(host)
        try:
            real(handle, steps)
            require_equal(once, host, f"a second {method}() changes nothing")
        except RuleBroken as error:
            broken.append(error)
        except Exception as error:  # noqa: BLE001 - a vendor's code
            broken.append(RuleBroken(f"a second {method}() succeeds, not {error!r}"))

    for provider in offered(host, plugin):
        with interposed(host.manager, plugin, method, twice):
            plug(host, provider)
            unplug_all(host)
        if broken:
            raise broken[0]


def release_needs_no_prepare(host: TestHost, plugin: str) -> None:
    """``release()`` succeeds and changes nothing if ``prepare()`` never ran.

    :raises RuleBroken: no device is offered; it fails, or changes the host.
    """

    def never(real: Step, handle: AttachHandle, steps: base.PrivilegedSteps) -> None:
        raise _refused(handle)

    for provider in offered(host, plugin):
        rule = f"release() without prepare() leaves {provider.name} as it was"
        _failed_plug(host, plugin, provider, never, rule)


def release_undoes_a_failed_prepare(host: TestHost, plugin: str) -> None:
    """``release()`` undoes a ``prepare()`` after which the plug failed.

    :raises RuleBroken: no device is offered; a file of the host is changed.
    """

    def failing(real: Step, handle: AttachHandle, steps: base.PrivilegedSteps) -> None:
        real(handle, steps)
        raise _refused(handle)

    for provider in offered(host, plugin):
        rule = f"release() undoes a prepare() of {provider.name} that failed"
        _failed_plug(host, plugin, provider, failing, rule)


def _failed_plug(
    host: TestHost, plugin: str, provider: Provider, around: Around, rule: str
) -> None:
    before = contents(host)
    with interposed(host.manager, plugin, "prepare", around):
        try:
            plug(host, provider)
        except exception.OsAccError:
            pass
        else:
            raise RuleBroken("a plug fails if prepare() does")
    require_returned(before, host, rule, plugin=plugin)


def _refused(handle: AttachHandle) -> exception.DeviceInUse:
    return exception.DeviceInUse(
        "refused by a check of conformance", address=str(handle.address)
    )


class _NoTime:
    """The steps of an operation whose deadline is now."""

    def __init__(self, steps: base.PrivilegedSteps) -> None:
        self._steps = steps

    def seconds_left(self) -> float:
        return 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._steps, name)


class _WithoutTime:
    """Calls ``prepare`` or ``release`` at the deadline.

    :ivar is_running: whether a call has not ended.
    """

    is_running = False

    def __call__(
        self, real: Step, handle: AttachHandle, steps: base.PrivilegedSteps
    ) -> None:
        self.is_running = True
        try:
            real(handle, _NoTime(steps))
        finally:
            self.is_running = False


def steps_end_at_the_deadline(
    host: TestHost, plugin: str, *, patience: float = PATIENCE
) -> None:
    """``prepare()`` and ``release()`` return if ``seconds_left()`` is 0.

    They may raise an error then.

    :param patience: seconds within which they have to.
    :raises RuleBroken: no device is offered, or one of them does not return.
    """
    host.restart(plug_timeout=patience, unplug_timeout=patience)
    for provider in offered(host, plugin):
        late = {"prepare": _WithoutTime(), "release": _WithoutTime()}
        with contextlib.ExitStack() as stack:
            for method, call in late.items():
                stack.enter_context(interposed(host.manager, plugin, method, call))
            try:
                plug(host, provider)
                unplug_all(host)
            except exception.OsAccError:
                for method, call in late.items():
                    rule = f"{method}() returns once seconds_left() is 0"
                    ended = not call.is_running
                    require(ended, f"{rule}; it took over {patience:.1f} s")
        unplug_all(host)


def nothing_is_left_open(
    host: TestHost, plugin: str, *, patience: float = PATIENCE
) -> None:
    """A scan, a plug and an unplug leave no descriptor open and no thread running.

    A daemon that is started once may stay.

    :param patience: seconds within which other threads have to end.
    :raises RuleBroken: no device is offered; with the descriptors or the threads.
    """

    def use_once() -> None:
        for provider in offered(host, plugin):
            plug(host, provider)
            unplug_all(host)
        host.manager.health_steps.read()

    require_nothing_left(use_once, patience)


def require_nothing_left(use_once: Callable[[], None], patience: float) -> None:
    """Use a plugin some times; check that each use but the first ends all it opens.

    :raises RuleBroken: with the descriptors or the threads that are left.
    """
    others = _threads()
    use_once()
    opened, once = _descriptors(), {each for each in _threads() if each.daemon}
    for _ in range(_ROUNDS):
        use_once()
    left = _descriptors() - opened
    shown = ", ".join(sorted(left))
    rule = "a scan, a plug and an unplug close all that they open"
    require(left.total() < _ROUNDS, f"{rule}; left open in {_ROUNDS} rounds: {shown}")
    until = time.monotonic() + patience
    for each in _threads() - others - once:
        each.join(max(0.0, until - time.monotonic()))
    threads = sorted(_threads() - others - once, key=lambda each: each.name)
    rule = "a thread of a plugin is a daemon, or ends with the call"
    waited = ", ".join(each.name for each in threads if not each.daemon)
    require(not waited, f"{rule}, not {waited}")
    rule = "a scan, a plug and an unplug end all threads that they start"
    require(len(threads) < _ROUNDS, f"{rule}, not {', '.join(map(str, threads))}")


def _descriptors() -> Counter[str]:
    """Return the number of open descriptors by the file, pipe or socket."""
    # The collector closes what is unreachable.
    gc.collect()
    found: Counter[str] = Counter()
    for number in os.listdir(_DESCRIPTORS):
        # That of the listing itself is closed.
        with contextlib.suppress(FileNotFoundError):
            found[os.readlink(f"{_DESCRIPTORS}/{number}").partition(":[")[0]] += 1
    return found


def _threads() -> set[threading.Thread]:
    """Return the threads that os_acc has not started, for which it has no objects."""
    return {
        each
        for each in threading.enumerate()
        if not isinstance(each, threading._DummyThread)
    }
