# SPDX-License-Identifier: Apache-2.0

"""Time a subject and its floor in turn, under the same conditions.

A machine's speed varies: another process runs, the processor warms up, a virtual
machine loses its core. Therefore the two are measured in pairs, with the order
changing from pair to pair, and the ratio is the median of the ratios of the pairs.
"""

from __future__ import annotations

import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from benchmarks.rows import Aim, Count, Row, Unit

_T = TypeVar("_T")


def _nothing() -> None:
    pass


@dataclasses.dataclass(frozen=True, slots=True)
class Work(Generic[_T]):
    """A piece of work to time.

    :ivar run: the timed function.
    :ivar check: raises if the result of ``run`` is wrong; not timed.
    :ivar before: prepares one run; not timed.
    :ivar after: cleans up after one run; not timed.
    """

    run: Callable[[], _T]
    check: Callable[[_T], None]
    before: Callable[[], None] = _nothing
    after: Callable[[], None] = _nothing


@dataclasses.dataclass(frozen=True, slots=True)
class Pairs:
    """The times of subject and floor, in seconds, pair by pair."""

    subject: tuple[float, ...]
    floor: tuple[float, ...]

    @property
    def ratios(self) -> list[float]:
        return [s / f for s, f in zip(self.subject, self.floor, strict=True)]


def paired(
    subject: Work[Any], floor: Work[Any], repetitions: int, warm_up: int = 1
) -> Pairs:
    """Time two works in turn: subject, floor, floor, subject, subject, ..."""
    return alternating(lambda: once(subject), lambda: once(floor), repetitions, warm_up)


def alternating(
    subject: Callable[[], float],
    floor: Callable[[], float],
    repetitions: int,
    warm_up: int = 1,
) -> Pairs:
    """Take the seconds of two self-timed functions in the order of :func:`paired`."""
    for _ in range(warm_up):
        subject()
        floor()
    ours: list[float] = []
    theirs: list[float] = []
    for index in range(repetitions):
        if index % 2:
            theirs.append(floor())
            ours.append(subject())
        else:
            ours.append(subject())
            theirs.append(floor())
    return Pairs(tuple(ours), tuple(theirs))


def once(work: Work[Any]) -> float:
    """Run a work once and check its result; return its seconds."""
    work.before()
    # Python's collector stays on, as in a service, but only for this run's garbage.
    gc.collect()
    start = time.perf_counter()
    result = work.run()
    seconds = time.perf_counter() - start
    work.check(result)
    work.after()
    return seconds


def spread(values: Sequence[float]) -> float:
    """Return the distance between the quartiles; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return high - low


def row(
    pairs: Pairs,
    *,
    benchmark: str,
    case: str,
    size: int,
    things: str,
    floor_is: str,
    aim: Aim | None = None,
    counts: tuple[Count, ...] = (),
) -> Row:
    """Return the row of the table for pairs of seconds."""
    return Row(
        benchmark=benchmark,
        case=case,
        size=size,
        things=things,
        unit=Unit.SECONDS,
        median=statistics.median(pairs.subject),
        spread=spread(pairs.subject),
        samples=len(pairs.subject),
        floor=statistics.median(pairs.floor),
        floor_is=floor_is,
        ratio=statistics.median(pairs.ratios),
        ratio_spread=spread(pairs.ratios),
        aim=aim,
        counts=counts,
    )
