# SPDX-License-Identifier: Apache-2.0

"""Whether amounts can be spread at all, each being divisible at will.

Where they cannot, no assignment is left. Where every amount is the same,
the answer is exact: this is what keeps such requests from being searched.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

#: Above this, in units of what all amounts have in common, a sum is not
#: looked for: it counts as one that can be reached.
_LARGEST: Final = 1 << 14


@functools.lru_cache(maxsize=4096)
def adds_up(target: int, amounts: tuple[tuple[int, int], ...]) -> bool:
    """Whether some of these amounts make exactly a sum.

    :param amounts: (amount, how many there are of it); no amount is zero.
    :returns: False only where that is sure.
    """
    if not target:
        return True
    unit = math.gcd(*(amount for amount, _number in amounts))
    if not unit or target % unit:
        return False
    wanted = target // unit
    if sum(amount * number for amount, number in amounts) < target:
        return False
    if wanted > _LARGEST:
        return True
    window = (2 << wanted) - 1
    reached = 1
    for amount, number in amounts:
        reached = _with_more(reached, amount // unit, number, window)
    return bool(reached >> wanted & 1)


def _with_more(reached: int, amount: int, number: int, window: int) -> int:
    """The sums, as bits, that some of these more make, too."""
    many = 1
    while number:
        taken = min(many, number)
        reached |= (reached << amount * taken) & window
        number -= taken
        many *= 2
    return reached


def parts_of_places(places: int, rows: Sequence[int]) -> list[int]:
    """Places that the same rows have, together; as bit masks.

    Those that no row has are left out.
    """
    parts = [places]
    for row in rows:
        parts = [
            piece for part in parts for piece in (part & row, part & ~row) if piece
        ]
    return [part for part in parts if any(part & row for row in rows)]


def saturates(
    supply: Sequence[int],
    rows: Sequence[int],
    parts: Sequence[int],
    capacity: Sequence[int],
    must: Sequence[int],
    step: Callable[[], None],
) -> bool:
    """Whether all supply finds room, and all that must be filled is filled.

    What has to be filled is filled first. A way that gives a supply its room
    later never takes anything from it, so that the two do not compete.

    :param rows: for each supply the places that can take of it, as a bit mask.
    :param parts: the same for each sink: the places that it is made of.
    :param capacity: of each sink.
    :param must: how much of it has to be filled.
    :param step: called once for each way that is tried.
    """
    if sum(must) > sum(supply) or sum(supply) > sum(capacity):
        return False
    reach = [[sink for sink, part in enumerate(parts) if part & row] for row in rows]
    spread = _Spread(supply, reach, step)
    return spread.pours(must, sum(must)) and spread.pours(capacity, sum(supply))


class _Spread:
    """A flow from supplies to sinks, made larger way by way."""

    def __init__(
        self,
        supply: Sequence[int],
        reach: Sequence[Sequence[int]],
        step: Callable[[], None],
    ) -> None:
        self._left = list(supply)
        self._reach = reach
        self._step = step
        self._total = 0
        self._filled: dict[int, int] = {}
        # By sink: how much of it comes from which supply.
        self._flow: dict[int, dict[int, int]] = {}

    def pours(self, room: Sequence[int], total: int) -> bool:
        """Whether this much finds room."""
        while self._total < total:
            self._step()
            if not self._widened(room):
                return False
        return True

    def _widened(self, room: Sequence[int]) -> bool:
        """Find one more way from a supply to a sink, and use it to the full."""
        sources: dict[int, int | None] = {
            each: None for each, left in enumerate(self._left) if left
        }
        through: dict[int, int] = {}
        queue = deque(sources)
        while queue:
            supply = queue.popleft()
            for sink in self._reach[supply]:
                if sink in through:
                    continue
                through[sink] = supply
                if self._filled.get(sink, 0) < room[sink]:
                    self._use(sink, room, sources, through)
                    return True
                for other in self._flow.get(sink, ()):
                    if other not in sources:
                        sources[other] = sink
                        queue.append(other)
        return False

    def _use(
        self,
        last: int,
        room: Sequence[int],
        sources: dict[int, int | None],
        through: dict[int, int],
    ) -> None:
        way: list[tuple[int, int, int | None]] = []
        sink: int | None = last
        while sink is not None:
            supply = through[sink]
            way.append((supply, sink, sources[supply]))
            sink = sources[supply]
        amount = min(
            self._left[way[-1][0]],
            room[last] - self._filled.get(last, 0),
            *(
                self._flow[back][supply]
                for supply, _sink, back in way
                if back is not None
            ),
        )
        for supply, sink, back in way:
            into = self._flow.setdefault(sink, {})
            into[supply] = into.get(supply, 0) + amount
            if back is not None:
                self._flow[back][supply] -= amount
                if not self._flow[back][supply]:
                    del self._flow[back][supply]
        self._left[way[-1][0]] -= amount
        self._filled[last] = self._filled.get(last, 0) + amount
        self._total += amount
