# SPDX-License-Identifier: Apache-2.0

"""Measure the phases of one plug and one unplug."""

from __future__ import annotations

import contextlib
import functools
import inspect
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

from oslo_privsep import comm

from benchmarks import measure
from benchmarks.cycles import PLUG, UNPLUG, Library
from benchmarks.rows import Row, Unit
from os_acc.inventory import discovery
from os_acc.store.leases import Store

_HELPER = "calls of the helper, with the writes"
_STORE = "transactions of the store"
_HOST = "looking at the host"
_REST = "all else"
_PHASES = {
    PLUG: (_HELPER, _STORE, _HOST, _REST),
    UNPLUG: (_HELPER, _STORE, _REST),
}


class _Clock:
    """Sums up seconds by phase; a nested phase is subtracted from the outer one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = [0.0]

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, with its time added to the phase."""

        @functools.wraps(function)
        def run(*args: Any, **more: Any) -> Any:
            self._inner.append(0.0)
            start = time.perf_counter()
            try:
                return function(*args, **more)
            finally:
                whole = time.perf_counter() - start
                own = whole - self._inner.pop()
                self.seconds[phase] = self.seconds.get(phase, 0.0) + own
                self._inner[-1] += whole

        return run


def rows(benchmark: str, library: Library, repetitions: int) -> Iterator[Row]:
    """Yield rows for one VF; the caller's thread waits for every phase."""
    _cycle(library)
    cycles = [_cycle(library) for _ in range(repetitions)]
    for half, phases in _PHASES.items():
        for phase in phases:
            seconds = [each[half][phase] for each in cycles]
            yield _row(benchmark, _case(half, phase), seconds)


def cases() -> set[tuple[str, int]]:
    """Return the case and size of each row."""
    return {
        (_case(half, phase), 1) for half, phases in _PHASES.items() for phase in phases
    }


def _case(half: str, phase: str) -> str:
    return f"{half}: {phase}"


def _cycle(library: Library) -> dict[str, dict[str, float]]:
    with _watched() as plug:
        guest = plug.timed(_REST, library.plug)(1)
    with _watched() as unplug:
        unplug.timed(_REST, library.unplug)(guest, 1)
    return {PLUG: plug.seconds, UNPLUG: unplug.seconds}


@contextlib.contextmanager
def _watched() -> Iterator[_Clock]:
    clock = _Clock()
    watched: list[tuple[object, str, str]] = [
        (comm.ClientChannel, "send_recv", _HELPER),
        (discovery, "discover", _HOST),
        *((Store, name, _STORE) for name in _methods(Store)),
    ]
    with contextlib.ExitStack() as patches:
        for owner, name, phase in watched:
            function = clock.timed(phase, getattr(owner, name))
            patches.enter_context(mock.patch.object(owner, name, function))
        yield clock


def _methods(owner: type) -> Iterator[str]:
    for name, found in vars(owner).items():
        if inspect.isfunction(found) and not name.startswith("_"):
            yield name


def _row(benchmark: str, case: str, seconds: Sequence[float]) -> Row:
    return Row(
        benchmark=benchmark,
        case=case,
        size=1,
        things="VFs",
        unit=Unit.SECONDS,
        median=statistics.median(seconds),
        spread=measure.spread(seconds),
        samples=len(seconds),
    )
