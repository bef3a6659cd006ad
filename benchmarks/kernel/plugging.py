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

"""Plug and unplug of VFs, against the same writes in a bare loop as root."""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks import measure
from benchmarks.kernel import counting
from benchmarks.kernel.library import Library
from benchmarks.kernel.writes import Recorder, Write, replay
from benchmarks.measure import Pairs
from benchmarks.rows import Aim, Count, Row, Unit
from os_acc.privsep import kernel
from tests.functional.kernel import sysfs

NAME, WRITES = "real-plug", "write"
BOTH, PLUG, UNPLUG = "plug and unplug", "plug", "unplug"
_SIZES = (1, 4)
_FLOOR = "the same writes, as root"


@dataclasses.dataclass(frozen=True, slots=True)
class Cycle:
    """One plug and one unplug; seconds."""

    plug: float
    unplug: float


@dataclasses.dataclass(frozen=True, slots=True)
class Script:
    """What is written to plug as many VFs, and to unplug them."""

    plug: tuple[Write, ...]
    unplug: tuple[Write, ...]


def record(library: Library, recorder: Recorder, amount: int) -> Script:
    """See what the library writes, where it writes in this process."""
    real, kernel.current = kernel.current, recorder
    try:
        guest = library.plug(amount)
        plug = recorder.take()
        library.unplug(guest, amount)
        return Script(plug, recorder.take())
    finally:
        kernel.current = real


class Bench:
    """The two ways to plug, each checked at every step.

    :param scripts: for each number of VFs what the library wrote.
    """

    def __init__(self, library: Library, scripts: dict[int, Script]) -> None:
        self._library = library
        self._scripts = scripts
        self._before = self._bindings()
        #: What single writes of the floor took, by attribute.
        self.writes: dict[str, list[float]] = {}

    def ours(self, amount: int) -> Cycle:
        """By the library."""
        gc.collect()
        start = time.perf_counter()
        guest = self._library.plug(amount)
        plug = time.perf_counter() - start
        self._check_plugged(amount)
        gc.collect()
        start = time.perf_counter()
        self._library.unplug(guest, amount)
        unplug = time.perf_counter() - start
        self._check_unplugged()
        return Cycle(plug, unplug)

    def bare(self, amount: int) -> Cycle:
        """By the writes alone."""
        script = self._scripts[amount]
        gc.collect()
        plug = self._replay(script.plug, amount)
        self._check_plugged(amount)
        gc.collect()
        unplug = self._replay(script.unplug, amount)
        self._check_unplugged()
        return Cycle(plug, unplug)

    def counts(self, amount: int) -> dict[str, tuple[Count, ...]]:
        """Count once what each half takes."""
        with counting.counting() as plugged:
            guest = self._library.plug(amount)
        self._check_plugged(amount)
        with counting.counting() as unplugged:
            self._library.unplug(guest, amount)
        self._check_unplugged()
        return {
            PLUG: (*plugged.told(amount), self._written(self._scripts[amount].plug)),
            UNPLUG: (
                *unplugged.told(amount),
                self._written(self._scripts[amount].unplug),
            ),
        }

    def _written(self, writes: Sequence[Write]) -> Count:
        return Count("writes to sysfs", len(writes))

    def _replay(self, writes: Sequence[Write], amount: int) -> float:
        start = time.perf_counter()
        seconds = replay(writes)
        whole = time.perf_counter() - start
        if amount == 1:
            for write, each in zip(writes, seconds, strict=True):
                self.writes.setdefault(write.attribute, []).append(each)
        return whole

    def _bindings(self) -> list[tuple[str | None, str | None]]:
        return [
            (sysfs.driver(each), sysfs.override(each)) for each in self._library.vfs
        ]

    def _check_plugged(self, amount: int) -> None:
        ours = [each for each in self._library.vfs if sysfs.driver(each) == "vfio-pci"]
        assert len(ours) == amount, f"{len(ours)} of {amount} with vfio-pci"
        assert all(sysfs.vfio_node(each).exists() for each in ours)

    def _check_unplugged(self) -> None:
        assert self._bindings() == self._before, self._bindings()


def rows(bench: Bench, repetitions: int) -> Iterator[Row]:
    """All of them in turn, so that each meets the same machine."""
    works = [
        lambda way=way, size=size: way(size)
        for size in _SIZES
        for way in (bench.ours, bench.bare)
    ]
    ours_one, bare_one, ours_four, bare_four = _rounds(works, repetitions)
    for size, ours, bare in ((1, ours_one, bare_one), (4, ours_four, bare_four)):
        yield from _rows(size, ours, bare, bench.counts(size))
    yield measure.row(
        Pairs(_all(ours_four, _both), _all(ours_one, _both)),
        benchmark=NAME,
        case="plug and unplug, one request",
        size=4,
        things="VFs",
        floor_is="one VF",
        aim=Aim(4),
    )


def _rounds(
    works: Sequence[Callable[[], Cycle]], repetitions: int
) -> list[tuple[Cycle, ...]]:
    """Do all works in each round, each time beginning with another one."""
    for work in works:
        work()
    done: list[list[Cycle]] = [[] for _ in works]
    for number in range(repetitions):
        for place in range(len(works)):
            index = (place + number) % len(works)
            done[index].append(works[index]())
    return [tuple(each) for each in done]


def _both(cycle: Cycle) -> float:
    return cycle.plug + cycle.unplug


def _all(
    cycles: Sequence[Cycle], seconds: Callable[[Cycle], float]
) -> tuple[float, ...]:
    return tuple(seconds(each) for each in cycles)


def _rows(
    size: int,
    ours: Sequence[Cycle],
    bare: Sequence[Cycle],
    counts: dict[str, tuple[Count, ...]],
) -> Iterator[Row]:
    halves: dict[str, Callable[[Cycle], float]] = {
        BOTH: _both,
        PLUG: lambda each: each.plug,
        UNPLUG: lambda each: each.unplug,
    }
    for case, seconds in halves.items():
        yield measure.row(
            Pairs(_all(ours, seconds), _all(bare, seconds)),
            benchmark=NAME,
            case=case,
            size=size,
            things="VFs",
            floor_is=_FLOOR,
            aim=Aim(1.3) if (case, size) == (BOTH, 1) else None,
            counts=counts.get(case, ()),
        )


def write_rows(writes: dict[str, list[float]]) -> Iterator[Row]:
    """What the kernel needs for one write to each attribute."""
    for attribute, seconds in sorted(writes.items()):
        yield Row(
            benchmark=WRITES,
            case=attribute,
            size=1,
            things="writes",
            unit=Unit.SECONDS,
            median=statistics.median(seconds),
            spread=measure.spread(seconds),
            samples=len(seconds),
        )
