# SPDX-License-Identifier: Apache-2.0

"""Families of sets, encoded as integers, contain exactly the expected sets."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable

from hypothesis import given, settings
from hypothesis import strategies as st

from os_acc.numa.fit import cell_sets

CELLS = 5
sets = st.integers(0, (1 << CELLS) - 1)


def listed(family: int) -> set[int]:
    return set(cell_sets.members(family))


def every_set() -> range:
    return range(1 << CELLS)


@given(sets)
def test_the_members_of_a_set_are_told_ascending(cells: int) -> None:
    members = list(cell_sets.members(cells))
    assert members == sorted(members)
    assert sum(1 << cell for cell in members) == cells


def test_everything_is_every_set() -> None:
    assert listed(cell_sets.everything(CELLS)) == set(every_set())


@given(sets)
def test_a_set_touches_another_with_a_cell_in_common(cells: int) -> None:
    touching = cell_sets.touching(CELLS, cells)
    assert listed(touching) == {each for each in every_set() if each & cells}


@given(st.dictionaries(sets, st.integers(0, 40), max_size=6), st.integers(0, 90))
def test_what_a_set_is_worth_is_the_sum_of_what_it_touches(
    worths: dict[int, int], least: int
) -> None:
    def worth(cells: int) -> int:
        return sum(value for touched, value in worths.items() if cells & touched)

    digits = cell_sets.worth(CELLS, worths)
    family = cell_sets.at_least(CELLS, digits, least)
    assert listed(family) == {each for each in every_set() if worth(each) >= least}


@given(st.integers(0, 255), st.lists(st.integers(0, 255), max_size=6))
def test_bounds_that_are_too_narrow_leave_nothing_and_something_without_any_one(
    family: int, bounds: list[int]
) -> None:
    def left(places: Iterable[int]) -> int:
        return functools.reduce(int.__and__, (bounds[at] for at in places), family)

    # The last bound excludes all sets that are left by the others.
    bounds.append(~left(range(len(bounds))))
    found = cell_sets.too_narrow(family, bounds)
    assert not left(found)
    for missing in found:
        assert left(place for place in found if place != missing)


def ways(choices: list[int]) -> list[tuple[int, ...]]:
    """Return every assignment of cells, in order."""
    return [
        way
        for way in itertools.permutations(range(CELLS), len(choices))
        if all(cells >> cell & 1 for cells, cell in zip(choices, way, strict=True))
    ]


def taken(way: tuple[int, ...]) -> int:
    return sum(1 << cell for cell in way)


choices_of = st.lists(sets, max_size=CELLS + 1)


@settings(deadline=None)
@given(choices_of)
def test_seats_are_the_sets_that_can_be_sat_on(choices: list[int]) -> None:
    seated = cell_sets.seats(CELLS, choices)
    for place in range(len(choices) + 1):
        assert listed(seated[place]) == {taken(way) for way in ways(choices[place:])}


@given(choices_of)
def test_who_sits_down_at_once_sits_as_the_first_way_has_it(
    choices: list[int],
) -> None:
    found = cell_sets.at_hand(choices)
    assert found is None or tuple(found) == ways(choices)[0]


def test_who_comes_late_may_find_no_seat_at_once() -> None:
    assert cell_sets.at_hand([0b11, 0b10]) == [0, 1]
    assert cell_sets.at_hand([0b11, 0b01]) is None
    assert cell_sets.at_hand([]) == []


@settings(deadline=None)
@given(choices_of, st.sets(sets))
def test_the_first_way_is_the_first_of_all(
    choices: list[int], allowed: set[int]
) -> None:
    seated = cell_sets.seats(CELLS, choices)
    first = next((way for way in ways(choices) if taken(way) in allowed), None)
    family = sum(1 << each for each in allowed)
    if first is None:
        assert not seated[0] & family
    else:
        assert tuple(cell_sets.first(CELLS, choices, seated, family)) == first
