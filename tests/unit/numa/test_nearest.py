# SPDX-License-Identifier: Apache-2.0

"""The nearest devices are selected, evenly divided among a guest's cells.

The flow that selects them has the maximum size, and the minimum cost for that size.
"""

import itertools
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from os_acc.numa.nearest import ORDER, DevicePool, Flow, GroupDemand, divide
from os_acc.numa.policies import GuestCells
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
pools = st.lists(
    st.builds(
        DevicePool,
        st.just(""),
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


def cost(pool: DevicePool, guest: GuestCells) -> tuple[int, int]:
    return ORDER.index(guest.affinity(pool.node)), guest.distance(pool.node)


def evenness(nodes: list[int | None], guest: GuestCells) -> int:
    """Return the lowest unevenness of these devices over the guest's cells."""
    return min(
        sum(load * (load - 1) // 2 for load in map(homes.count, guest.cells))
        for homes in itertools.product(*(guest.nearest(node) for node in nodes))
    )


def ways(demands: list[GroupDemand], pools: list[DevicePool]) -> list[tuple[int, ...]]:
    """Return every assignment of units to pools that may serve them."""
    units = [demand.pools for demand in demands for _ in range(demand.amount)]
    return [
        way
        for way in itertools.product(*units)
        if all(way.count(place) <= each.count for place, each in enumerate(pools))
    ]


@given(st.data(), guests, pools)
def test_no_other_way_is_nearer_or_more_even(data, guest, pools):
    asked = data.draw(demands(len(pools)))
    shares = divide(asked, pools, guest)
    possible = ways(asked, pools)
    if not possible:
        assert any(
            sum(share) < demand.amount
            for share, demand in zip(shares, asked, strict=True)
        )
        return
    for share, demand in zip(shares, asked, strict=True):
        assert sum(share) == demand.amount
        assert {place for place, n in enumerate(share) if n} <= set(demand.pools)
    given_out = [
        place for share in shares for place, n in enumerate(share) for _ in range(n)
    ]
    assert all(given_out.count(i) <= each.count for i, each in enumerate(pools))

    def weight(way: tuple[int, ...] | list[int]) -> tuple[int, int, int]:
        tiers, distances = zip(*(cost(pools[i], guest) for i in way), strict=True)
        even = evenness([pools[i].node for i in way], guest)
        return sum(tiers), sum(distances), even

    assert weight(given_out) == min(weight(way) for way in possible)


def test_several_are_spread_over_the_guests_cells():
    guest = GuestCells(TOPOLOGY, (0, 2))
    pools = [DevicePool("", 0, 4), DevicePool("", 2, 4)]
    assert divide([GroupDemand(2, (0, 1))], pools, guest) == ((1, 1),)
    # A request with two choices leaves the pool to the request with one choice.
    asked = [GroupDemand(1, (0, 1)), GroupDemand(1, (0,))]
    assert divide(asked, pools, guest) == ((0, 1), (1, 0))


def test_the_same_socket_comes_before_a_nearer_cell_of_another():
    odd = NUMATopology(
        (
            NUMACell(id=0, socket=0, distances=((0, 10), (1, 40), (2, 20))),
            NUMACell(id=1, socket=0),
            NUMACell(id=2, socket=1),
        )
    )
    pools = [DevicePool("", 2, 1), DevicePool("", 1, 1), DevicePool("", None, 1)]
    guest = GuestCells(odd, (0,))
    assert divide([GroupDemand(1, (0, 1))], pools, guest) == ((0, 1, 0),)
    assert divide([GroupDemand(1, (0, 1, 2))], pools, guest) == ((0, 0, 1),)


def test_a_guest_anywhere_gets_the_first():
    guest = GuestCells(TOPOLOGY)
    pools = [DevicePool("", None, 1), DevicePool("", 3, 1), DevicePool("", 0, 1)]
    assert divide([GroupDemand(2, (0, 1, 2))], pools, guest) == ((1, 1, 0),)


#: Source, target, capacity, cost.
Edges = list[tuple[int, int, int, int]]

NODES, SOURCE, SINK = 5, 0, 4
edges_of = st.lists(
    st.tuples(
        st.integers(0, NODES - 1),
        st.integers(0, NODES - 1),
        st.integers(0, 2),
        st.integers(0, 5),
    ).filter(lambda edge: edge[0] != edge[1]),
    max_size=6,
)


def flow_of(edges: Edges) -> tuple[Flow, list[int]]:
    flow = Flow(NODES)
    return flow, [flow.add(*edge) for edge in edges]


def leaving(edges: Edges, amounts: list[int]) -> Counter[int]:
    """Return the net outflow of each node."""
    net = Counter[int]()
    for (source, target, _capacity, _cost), amount in zip(edges, amounts, strict=True):
        net[source] += amount
        net[target] -= amount
    return net


def price(edges: Edges, amounts: list[int]) -> int:
    return sum(edge[3] * n for edge, n in zip(edges, amounts, strict=True))


def best(edges: Edges, wanted: int) -> tuple[int, int]:
    """Return the best size and cost, by trying every amount on every edge."""
    found = (0, 0)
    for amounts in itertools.product(*(range(edge[2] + 1) for edge in edges)):
        net = leaving(edges, list(amounts))
        sent = net[SOURCE]
        inner = any(net[node] for node in range(NODES) if node not in (SOURCE, SINK))
        if not inner and 0 <= sent <= wanted:
            found = max(found, (sent, -price(edges, list(amounts))))
    return found[0], -found[1]


def sent(edges: Edges, *wanted: int) -> tuple[int, int]:
    """Return size and cost of a flow after these calls; check that it is a flow."""
    flow, numbers = flow_of(edges)
    size = sum(flow.run(SOURCE, SINK, each) for each in wanted)
    amounts = [flow.used(number) for number in numbers]
    assert all(0 <= n <= edge[2] for n, edge in zip(amounts, edges, strict=True))
    assert +leaving(edges, amounts) == +Counter({SOURCE: size})
    return size, price(edges, amounts)


@settings(deadline=None, max_examples=400)
@given(edges_of, st.integers(0, 6))
def test_no_other_flow_is_larger_or_as_large_and_cheaper(edges, wanted):
    assert sent(edges, wanted) == best(edges, wanted)


def test_an_edge_from_the_source_to_the_sink_is_a_path():
    edges = [(SOURCE, SINK, 1, 0), (SINK, 1, 1, 0), (1, SINK, 1, 0)]
    assert sent(edges, 2) == (1, 0)
