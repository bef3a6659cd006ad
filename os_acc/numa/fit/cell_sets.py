# SPDX-License-Identifier: Apache-2.0

"""Families of sets of host cells, each family one whole number.

Where there are n cells, a set of them is a number below 2**n, and a family of
sets has a bit for each such number. All sets are looked at in one operation,
of which the largest, for 16 cells, takes microseconds; so nothing is searched.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

#: How many cells there may be: 2**16 bits are 8 KiB.
MAX_CELLS: Final = 16


def members(cells: int) -> Iterator[int]:
    """The cells of a set, ascending."""
    while cells:
        lowest = cells & -cells
        yield lowest.bit_length() - 1
        cells ^= lowest


@functools.lru_cache(maxsize=MAX_CELLS + 1)
def containing(number: int) -> tuple[int, ...]:
    """For each of so many cells the family of all sets that contain it."""
    found = []
    for cell in range(number):
        width = 1 << cell
        family = ((1 << width) - 1) << width
        for doubled in range(cell + 1, number):
            family |= family << (1 << doubled)
        found.append(family)
    return tuple(found)


def everything(number: int) -> int:
    """The family of all sets of so many cells."""
    return (1 << (1 << number)) - 1


def touching(number: int, cells: int) -> int:
    """The family of the sets that have one of these cells, or more."""
    family = 0
    for cell in members(cells):
        family |= containing(number)[cell]
    return family


def worth(number: int, worths: Mapping[int, int]) -> list[int]:
    """What all sets are worth, at once.

    :param worths: what a set is worth that has one of these cells, or more.
    :returns: the digits of the sums, the lowest first: each is a family, that of
        the sets whose sum has it.
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
    """The family of the sets that are worth that much.

    :param digits: what :func:`worth` has found.
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
    """Places of those bounds that leave nothing of a family, between them.

    All but any one of them leave something.

    :param bounds: families of which all together leave nothing; the later, the
        rather they are kept.
    """
    # For each place, what the bounds from there on leave of everything.
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
    """Each on the lowest cell that is left, as long as that goes well.

    It is the first way to seat them where it goes well to the end.
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
    """Which sets can carry those that have to sit on a cell each.

    :param choices: of each of them, the cells that it can sit on.
    :returns: for each place in ``choices``, and for their end, the family of the
        sets that all from there on fill, with nothing left over.
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
    """The first way to seat them, the lowest cell of the earliest counting most.

    :param seated: what :func:`seats` has found.
    :param allowed: a family with which the first of those has a set in common.
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
