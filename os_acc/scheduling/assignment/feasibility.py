# SPDX-License-Identifier: Apache-2.0

"""Check whether amounts can be distributed if each is arbitrarily divisible.

If they cannot, no assignment exists. If all amounts are equal, the check is
exact, and such requests need no search.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from os_acc.numa.flow import Flow

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

    Supplies with the same places count as one. Mandatory room is filled first. Later
    augmenting paths never reduce the amount in a sink, so the two phases do not
    conflict.

    :param rows: for each supply the places that accept it, as a bit mask.
    :param parts: for each sink the places that it consists of, as a bit mask.
    :param capacity: the capacity of each sink.
    :param must: the amount of each sink that must be filled.
    :param step: called once for each supply and sink.
    """
    if sum(must) > sum(supply) or sum(supply) > sum(capacity):
        return False
    merged: defaultdict[int, int] = defaultdict(int)
    for amount, row in zip(supply, rows, strict=True):
        merged[row] += amount
    for _each in (*supply, *parts):
        step()
    source, sink = len(merged) + len(parts), len(merged) + len(parts) + 1
    flow = Flow(sink + 1)
    for number, (row, amount) in enumerate(merged.items()):
        flow.add(source, number, amount)
        for place, part in enumerate(parts, len(merged)):
            if part & row:
                flow.add(number, place, amount)
    sent = 0
    for rooms, wanted in ((must, sum(must)), (_rest(capacity, must), sum(supply))):
        for place, room in enumerate(rooms, len(merged)):
            flow.add(place, sink, room)
        sent += flow.run(source, sink, wanted - sent)[0]
        if sent < wanted:
            return False
    return True


def _rest(capacity: Sequence[int], must: Sequence[int]) -> list[int]:
    return [room - amount for room, amount in zip(capacity, must, strict=True)]
