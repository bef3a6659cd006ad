# SPDX-License-Identifier: Apache-2.0

"""Whether amounts add up to a sum."""

from __future__ import annotations

import functools
import math
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
