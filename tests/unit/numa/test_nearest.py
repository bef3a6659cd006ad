# SPDX-License-Identifier: Apache-2.0

"""The nearest devices are selected, evenly divided among a guest's cells."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from os_acc.numa.affinity import GuestCells
from os_acc.numa.nearest import ORDER, EqualDevices, GroupDemand, divide
from os_acc.objects.numa import NUMACell, NUMATopology

CELLS = 4
#: Two sockets of two cells each; distances between cells as in firmware tables.
DISTANCES = ((10, 12, 21, 31), (12, 10, 31, 21), (21, 31, 10, 12), (31, 21, 12, 10))
TOPOLOGY = NUMATopology(
    tuple(
        NUMACell(id=cell, socket=cell // 2, distances=tuple(enumerate(row)))
        for cell, row in enumerate(DISTANCES)
    )
)
guests = st.lists(
    st.sampled_from(range(CELLS)), min_size=1, max_size=3, unique=True
).map(lambda cells: GuestCells(TOPOLOGY, tuple(cells)))
shelves = st.lists(
    st.builds(
        EqualDevices,
        st.sampled_from((None, *range(CELLS))),
        st.integers(min_value=0, max_value=2),
    ),
    min_size=1,
    max_size=4,
)


@st.composite
def demands(draw: st.DrawFn, places: int) -> list[GroupDemand]:
    return draw(
        st.lists(
            st.builds(
                GroupDemand,
                st.integers(min_value=1, max_value=2),
                st.sets(st.sampled_from(range(places))).map(
                    lambda each: tuple(sorted(each))
                ),
            ),
            min_size=1,
            max_size=2,
        )
    )


def cost(shelf: EqualDevices, guest: GuestCells) -> tuple[int, int]:
    return ORDER.index(guest.affinity(shelf.node)), guest.distance(shelf.node)


def evenness(nodes: list[int | None], guest: GuestCells) -> int:
    """Return the lowest unevenness of these devices over the guest's cells."""
    return min(
        sum(load * (load - 1) // 2 for load in map(homes.count, guest.cells))
        for homes in itertools.product(*(guest.nearest(node) for node in nodes))
    )


def ways(
    demands: list[GroupDemand], shelves: list[EqualDevices]
) -> list[tuple[int, ...]]:
    """Return every assignment of units to shelves that may serve them."""
    units = [demand.shelves for demand in demands for _ in range(demand.amount)]
    return [
        way
        for way in itertools.product(*units)
        if all(way.count(place) <= each.count for place, each in enumerate(shelves))
    ]


@given(st.data(), guests, shelves)
def test_no_other_way_is_nearer_or_more_even(
    data: st.DataObject, guest: GuestCells, shelves: list[EqualDevices]
) -> None:
    asked = data.draw(demands(len(shelves)))
    shares = divide(asked, shelves, guest)
    possible = ways(asked, shelves)
    if not possible:
        assert any(
            sum(share) < demand.amount
            for share, demand in zip(shares, asked, strict=True)
        )
        return
    for share, demand in zip(shares, asked, strict=True):
        assert sum(share) == demand.amount
        assert {place for place, n in enumerate(share) if n} <= set(demand.shelves)
    given_out = [
        place for share in shares for place, n in enumerate(share) for _ in range(n)
    ]
    assert all(given_out.count(i) <= each.count for i, each in enumerate(shelves))

    def weight(way: tuple[int, ...] | list[int]) -> tuple[int, int, int]:
        tiers, distances = zip(*(cost(shelves[i], guest) for i in way), strict=True)
        even = evenness([shelves[i].node for i in way], guest)
        return sum(tiers), sum(distances), even

    assert weight(given_out) == min(weight(way) for way in possible)


def test_several_are_spread_over_the_guests_cells() -> None:
    guest = GuestCells(TOPOLOGY, (0, 2))
    shelves = [EqualDevices(0, 4), EqualDevices(2, 4)]
    assert divide([GroupDemand(2, (0, 1))], shelves, guest) == ((1, 1),)
    # A request with two choices leaves the shelf to the request with one choice.
    asked = [GroupDemand(1, (0, 1)), GroupDemand(1, (0,))]
    assert divide(asked, shelves, guest) == ((0, 1), (1, 0))


def test_the_same_socket_comes_before_a_nearer_cell_of_another() -> None:
    odd = NUMATopology(
        (
            NUMACell(id=0, socket=0, distances=((0, 10), (1, 40), (2, 20))),
            NUMACell(id=1, socket=0),
            NUMACell(id=2, socket=1),
        )
    )
    shelves = [EqualDevices(2, 1), EqualDevices(1, 1), EqualDevices(None, 1)]
    guest = GuestCells(odd, (0,))
    assert divide([GroupDemand(1, (0, 1))], shelves, guest) == ((0, 1, 0),)
    assert divide([GroupDemand(1, (0, 1, 2))], shelves, guest) == ((0, 0, 1),)


def test_a_guest_anywhere_gets_the_first() -> None:
    guest = GuestCells(TOPOLOGY)
    shelves = [EqualDevices(None, 1), EqualDevices(3, 1), EqualDevices(0, 1)]
    assert divide([GroupDemand(2, (0, 1, 2))], shelves, guest) == ((1, 1, 0),)
