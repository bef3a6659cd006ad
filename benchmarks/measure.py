# SPDX-License-Identifier: Apache-2.0

"""Times a subject and its floor in turn, so that both meet the same machine.

A machine is never equally fast twice: another process runs, the processor
warms up, a virtual machine loses its core. So the two are never measured one
after the other, but in pairs, with the order changing from pair to pair, and
the ratio is the median of the ratios of the pairs.
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
    """Something that can be timed.

    :ivar run: what is timed; its result goes to
    :ivar check: which raises if it did not do what it should; not timed.
    :ivar before: makes ready for one run; not timed.
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
    """The same of what measures itself, and gives its seconds."""
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
    """Run it once, check what it did, and give the seconds it took."""
    work.before()
    # Python's collector stays on, as in a service, but pays for this run only.
    gc.collect()
    start = time.perf_counter()
    result = work.run()
    seconds = time.perf_counter() - start
    work.check(result)
    work.after()
    return seconds


def spread(values: Sequence[float]) -> float:
    """The distance between the quartiles; nothing is spread over one value."""
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
    """The line of the table that pairs of seconds give."""
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
