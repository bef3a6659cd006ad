# SPDX-License-Identifier: Apache-2.0

"""A check of descriptors and threads that a plugin leaves behind.

The interpreter waits for a thread that is no daemon: no ``os-acc`` command would end.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

from os_acc.testing.conformance.rules import offered, plug, require, unplug_all
from os_acc.testing.test_host import TestHost

#: Rounds in which a leak shows, after one that fills caches.
_ROUNDS: Final = 2
#: Seconds in which a thread may end after the call that started it.
PATIENCE: Final = 10.0
_DESCRIPTORS: Final = "/proc/self/fd"


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
