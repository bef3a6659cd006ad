# SPDX-License-Identifier: Apache-2.0

"""Measure one plug and one unplug, by the library and by its writes alone."""

from __future__ import annotations

import abc
import dataclasses
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Generic, Protocol, TypeVar

from benchmarks import counting, measure
from benchmarks.measure import Pairs
from benchmarks.rows import Aim, Count, Row
from os_acc.objects.api import InstanceDict

BOTH, PLUG, UNPLUG = "plug and unplug", "plug", "unplug"
ONE_REQUEST = "plug and unplug, one request"
SIZES = (1, 4)

_W = TypeVar("_W")


@dataclasses.dataclass(frozen=True, slots=True)
class Cycle:
    """The seconds of one plug and one unplug."""

    plug: float
    unplug: float

    @property
    def both(self) -> float:
        return self.plug + self.unplug


@dataclasses.dataclass(frozen=True, slots=True)
class Script(Generic[_W]):
    """The writes of a plug of some number of VFs, and those of the unplug."""

    plug: tuple[_W, ...]
    unplug: tuple[_W, ...]


class Library(Protocol):
    """The library, with the VFs of one card."""

    def plug(self, amount: int) -> InstanceDict:
        """Plug VFs for a new instance; return the instance."""

    def unplug(self, guest: InstanceDict, amount: int) -> None:
        """Unplug all VFs of an instance."""


class Bench(abc.ABC, Generic[_W]):
    """The two ways to plug, each checked at every step.

    :param scripts: the library's writes, by the number of VFs.
    """

    def __init__(self, library: Library, scripts: dict[int, Script[_W]]) -> None:
        self._library = library
        self._scripts = scripts

    def ours(self, amount: int) -> Cycle:
        """Run a cycle with the library."""
        guests: list[InstanceDict] = []
        return self._cycle(
            amount,
            lambda: guests.append(self._library.plug(amount)),
            lambda: self._library.unplug(guests.pop(), amount),
        )

    def bare(self, amount: int) -> Cycle:
        """Run a cycle with the bare writes."""
        script = self._scripts[amount]
        return self._cycle(
            amount,
            lambda: self._replay(script.plug, amount),
            lambda: self._replay(script.unplug, amount),
        )

    def _cycle(
        self, amount: int, plug: Callable[[], None], unplug: Callable[[], None]
    ) -> Cycle:
        plugged = _timed(plug)
        self._check_plugged(amount)
        unplugged = _timed(unplug)
        self._check_unplugged()
        return Cycle(plugged, unplugged)

    def counts(self, amount: int) -> dict[str, tuple[Count, ...]]:
        """Count once the events of each half."""
        script = self._scripts[amount]
        with self._counting() as plugged:
            guest = self._library.plug(amount)
        self._check_plugged(amount)
        with self._counting() as unplugged:
            self._library.unplug(guest, amount)
        self._check_unplugged()
        return {
            PLUG: (*plugged.table_counts(amount), _written(script.plug)),
            UNPLUG: (*unplugged.table_counts(amount), _written(script.unplug)),
        }

    def _counting(self) -> AbstractContextManager[counting.Counted]:
        return counting.counting()

    @abc.abstractmethod
    def _replay(self, writes: Sequence[_W], amount: int) -> None:
        """Repeat the writes, one after another."""

    @abc.abstractmethod
    def _check_plugged(self, amount: int) -> None:
        """Check that exactly this number of VFs has the driver vfio-pci."""

    @abc.abstractmethod
    def _check_unplugged(self) -> None:
        """Check that the host is in its first state."""


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """The form of the rows of a bench.

    :ivar floor_is: the description of the bare writes.
    :ivar where: a suffix of each case.
    :ivar full: add rows of the halves, counts and aims.
    """

    benchmark: str
    floor_is: str
    where: str = ""
    full: bool = True

    def cases(self) -> set[tuple[str, int]]:
        """Return the case and size of each row."""
        halves = (BOTH, PLUG, UNPLUG) if self.full else (BOTH,)
        found = {(f"{half}{self.where}", size) for half in halves for size in SIZES}
        return found | {(f"{ONE_REQUEST}{self.where}", SIZES[-1])}

    def rows(self, bench: Bench[_W], repetitions: int) -> Iterator[Row]:
        """Measure all sizes in turn, under the same conditions; yield their rows."""
        ours, bare = _rounds(bench, repetitions)
        for size in SIZES:
            yield from self._of(bench, size, ours[size], bare[size])
        one, many = SIZES
        yield self._row(
            Pairs(_seconds(ours[many], BOTH), _seconds(ours[one], BOTH)),
            ONE_REQUEST,
            many,
            floor_is="one VF",
            aim=Aim(many),
        )

    def _of(
        self,
        bench: Bench[_W],
        size: int,
        ours: Sequence[Cycle],
        bare: Sequence[Cycle],
    ) -> Iterator[Row]:
        counts = bench.counts(size) if self.full else {}
        for case in (BOTH, *counts):
            yield self._row(
                Pairs(_seconds(ours, case), _seconds(bare, case)),
                case,
                size,
                floor_is=self.floor_is,
                aim=Aim(1.3) if (case, size) == (BOTH, 1) else None,
                counts=counts.get(case, ()),
            )

    def _row(
        self,
        pairs: Pairs,
        case: str,
        size: int,
        *,
        floor_is: str,
        aim: Aim | None,
        counts: tuple[Count, ...] = (),
    ) -> Row:
        return measure.row(
            pairs,
            benchmark=self.benchmark,
            case=f"{case}{self.where}",
            size=size,
            things="VFs",
            floor_is=floor_is,
            aim=aim if self.full else None,
            counts=counts,
        )


def _timed(function: Callable[[], None]) -> float:
    gc.collect()
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _written(writes: Sequence[object]) -> Count:
    return Count("writes to sysfs", len(writes))


def _rounds(
    bench: Bench[_W], repetitions: int
) -> tuple[dict[int, list[Cycle]], dict[int, list[Cycle]]]:
    """Run all works in each round, starting each round with another one."""
    ours: dict[int, list[Cycle]] = {size: [] for size in SIZES}
    bare: dict[int, list[Cycle]] = {size: [] for size in SIZES}
    works = [
        (done[size], way, size)
        for size in SIZES
        for done, way in ((ours, bench.ours), (bare, bench.bare))
    ]
    for _, way, size in works:
        way(size)
    for number in range(repetitions):
        first = number % len(works)
        for done, way, size in works[first:] + works[:first]:
            done.append(way(size))
    return ours, bare


def _seconds(cycles: Sequence[Cycle], case: str) -> tuple[float, ...]:
    halves = {BOTH: "both", PLUG: "plug", UNPLUG: "unplug"}
    return tuple(getattr(each, halves[case]) for each in cycles)
