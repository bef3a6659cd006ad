# SPDX-License-Identifier: Apache-2.0

"""Check whether amounts can be distributed if each is arbitrarily divisible.

If they cannot, no assignment exists. If all amounts are equal, the check is
exact, and such requests need no search.
"""

from __future__ import annotations

import functools
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

#: Sums above this, in units of the greatest common divisor of all amounts, are
#: not computed and count as reachable.
_LARGEST: Final = 1 << 14


@functools.lru_cache(maxsize=4096)
def adds_up(target: int, amounts: tuple[tuple[int, int], ...]) -> bool:
    """Return whether some of these amounts add up to exactly the target.

    :param amounts: (amount, number of times it is available); none is zero.
    :returns: False only if it is certain.
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
    """Add the sums, as bits, that become reachable with more amounts."""
    many = 1
    while number:
        taken = min(many, number)
        reached |= (reached << amount * taken) & window
        number -= taken
        many *= 2
    return reached


def parts_of_places(places: int, rows: Sequence[int]) -> list[int]:
    """Partition places into sets contained in the same rows, as bit masks.

    Places in no row are omitted.
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
    """Return whether all supply can be placed and all mandatory room filled.

    Mandatory room is filled first. Later augmenting paths never reduce the
    amount in a sink, so the two phases do not conflict.

    :param rows: for each supply the places that accept it, as a bit mask.
    :param parts: for each sink the places that it consists of, as a bit mask.
    :param capacity: the capacity of each sink.
    :param must: the amount of each sink that must be filled.
    :param step: called before each search for an augmenting path.
    """
    if sum(must) > sum(supply) or sum(supply) > sum(capacity):
        return False
    reach = [[sink for sink, part in enumerate(parts) if part & row] for row in rows]
    spread = _Spread(supply, reach, step)
    return spread.pours(must, sum(must)) and spread.pours(capacity, sum(supply))


class _Spread:
    """A flow from supplies to sinks, increased path by path."""

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
        # By sink: the amount from each supply.
        self._flow: dict[int, dict[int, int]] = {}

    def pours(self, room: Sequence[int], total: int) -> bool:
        """Return whether a flow of this total is possible."""
        while self._total < total:
            self._step()
            if not self._widened(room):
                return False
        return True

    def _widened(self, room: Sequence[int]) -> bool:
        """Find one augmenting path from a supply to a sink, and saturate it."""
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
