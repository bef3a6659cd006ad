# SPDX-License-Identifier: Apache-2.0

"""Families of sets of host cells, each encoded as one integer.

For n cells, a set is a number below 2**n, and a family of sets has one bit for
each such number. One operation handles all sets; the largest, for 16 cells,
takes microseconds, so no search is necessary.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

#: The largest number of cells: 2**16 bits are 8 KiB.
MAX_CELLS: Final = 16


def members(cells: int) -> Iterator[int]:
    """Yield the cells of a set in ascending order."""
    while cells:
        lowest = cells & -cells
        yield lowest.bit_length() - 1
        cells ^= lowest


@functools.lru_cache(maxsize=MAX_CELLS + 1)
def containing(number: int) -> tuple[int, ...]:
    """Return for each of ``number`` cells the family of all sets that contain it."""
    found = []
    for cell in range(number):
        width = 1 << cell
        family = ((1 << width) - 1) << width
        for doubled in range(cell + 1, number):
            family |= family << (1 << doubled)
        found.append(family)
    return tuple(found)


def everything(number: int) -> int:
    """Return the family of all sets of ``number`` cells."""
    return (1 << (1 << number)) - 1


def touching(number: int, cells: int) -> int:
    """Return the family of sets that contain at least one of these cells."""
    family = 0
    for cell in members(cells):
        family |= containing(number)[cell]
    return family


def worth(number: int, worths: Mapping[int, int]) -> list[int]:
    """Return the worth of all sets at once.

    :param worths: the worth that a set gains if it contains at least one of these
        cells.
    :returns: the binary digits of the sums, lowest first; each is the family of
        the sets whose sum has that digit set.
    """
    digits: list[int] = []
    for cells, value in worths.items():
        family = touching(number, cells)
        for place in members(value):
            _carry(digits, family, place)
    return digits


def _carry(digits: list[int], family: int, place: int) -> None:
    """Add 2**place for each set of the family."""
    digits += [0] * (place - len(digits))
    while family:
        if place == len(digits):
            digits.append(0)
        digits[place], family = digits[place] ^ family, digits[place] & family
        place += 1


def at_least(number: int, digits: Sequence[int], least: int) -> int:
    """Return the family of the sets that are worth at least ``least``.

    :param digits: the result of :func:`worth`.
    """
    if least.bit_length() > len(digits):
        return 0
    more, equal = 0, everything(number)
    for place in reversed(range(len(digits))):
        if least >> place & 1:
            equal &= digits[place]
        else:
            more |= equal & digits[place]
            equal &= ~digits[place]
    return more | equal


def too_narrow(family: int, bounds: Sequence[int]) -> list[int]:
    """Return the indexes of a minimal subset of bounds that excludes a family.

    :param bounds: families whose intersection with ``family`` is empty; later
        bounds are preferred.
    """
    # later[i] is the intersection of the bounds from i on.
    later = [-1]
    for bound in reversed(bounds):
        later.append(later[-1] & bound)
    later.reverse()
    found = []
    for place, bound in enumerate(bounds):
        if family & later[place + 1]:
            found.append(place)
            family &= bound
    return found


def at_hand(choices: Sequence[int]) -> list[int] | None:
    """Assign each guest cell to the lowest free host cell.

    If this greedy assignment succeeds, it is the first one of :func:`first`.
    """
    taken, found = 0, []
    for cells in choices:
        left = cells & ~taken
        if not left:
            return None
        found.append(next(members(left)))
        taken |= left & -left
    return found


def seats(number: int, choices: Sequence[int]) -> list[int]:
    """Return the sets that can carry guest cells, one host cell each.

    :param choices: for each guest cell, the host cells allowed for it.
    :returns: for each index in ``choices``, and for the end, the family of the
        sets that the guest cells from that index on fill exactly.
    """
    families = [1]
    for cells in reversed(choices):
        family = 0
        for cell in members(cells):
            without = families[-1] & ~containing(number)[cell]
            family |= without << (1 << cell)
        families.append(family)
    return families[::-1]


def first(
    number: int, choices: Sequence[int], seated: Sequence[int], allowed: int
) -> list[int]:
    """Return the lexicographically first assignment, lower cells preferred.

    :param seated: the result of :func:`seats`.
    :param allowed: a family that shares a set with ``seated[0]``.
    """
    left, found = allowed & seated[0], []
    for place, cells in enumerate(choices):
        for cell in members(cells):
            rest = (left & containing(number)[cell]) >> (1 << cell) & seated[place + 1]
            if rest:
                left = rest
                found.append(cell)
                break
    return found
