# SPDX-License-Identifier: Apache-2.0

"""A flow has the maximum size, and the minimum cost for that size."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from os_acc.numa.flow import Flow

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


@settings(deadline=None, max_examples=400)
@given(edges_of, st.integers(0, 6))
def test_no_other_flow_is_larger_or_as_large_and_cheaper(
    edges: Edges, wanted: int
) -> None:
    assert flow_of(edges)[0].run(SOURCE, SINK, wanted) == best(edges, wanted)


@settings(deadline=None)
@given(edges_of, st.integers(0, 6))
def test_where_nothing_has_a_price_it_is_as_large(edges: Edges, wanted: int) -> None:
    free = [(source, target, capacity, 0) for source, target, capacity, _ in edges]
    assert flow_of(free)[0].run(SOURCE, SINK, wanted) == best(free, wanted)


@given(edges_of, st.integers(0, 6))
def test_what_is_used_is_a_flow_of_that_size_and_cost(
    edges: Edges, wanted: int
) -> None:
    flow, numbers = flow_of(edges)
    sent, cost = flow.run(SOURCE, SINK, wanted)
    amounts = [flow.used(number) for number in numbers]
    assert all(0 <= n <= edge[2] for n, edge in zip(amounts, edges, strict=True))
    assert +leaving(edges, amounts) == +Counter({SOURCE: sent})
    assert price(edges, amounts) == cost


@given(edges_of, st.integers(0, 6))
def test_it_may_be_sent_little_by_little(edges: Edges, wanted: int) -> None:
    at_once, _ = flow_of(edges)
    slowly, _ = flow_of(edges)
    parts = [slowly.run(SOURCE, SINK, 1) for _ in range(wanted)]
    assert at_once.run(SOURCE, SINK, wanted) == (
        sum(sent for sent, _cost in parts),
        sum(cost for _sent, cost in parts),
    )


def test_an_edge_from_the_source_to_the_sink_is_a_path() -> None:
    flow, (direct, *_) = flow_of(
        [(SOURCE, SINK, 1, 0), (SINK, 1, 1, 0), (1, SINK, 1, 0)]
    )
    assert flow.run(SOURCE, SINK, 2) == (1, 0)
    assert flow.used(direct) == 1


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_a_cheap_way_is_given_up_where_that_lets_more_through(wanted: int) -> None:
    # Two nodes on each side; the cheap pair leaves no edge for the others.
    edges = [(0, 1, 1, 0), (0, 2, 1, 0), (1, 3, 1, 1), (1, 4, 1, 3), (2, 3, 1, 1)]
    flow, _ = flow_of([*edges, (3, 4, 1, 0)])
    assert flow.run(SOURCE, SINK, wanted) == (wanted, [0, 1, 4][wanted])


def test_nothing_flows_from_a_node_to_itself() -> None:
    flow = Flow(2)
    flow.add(0, 1, 1)
    assert flow.run(0, 0, 5) == (0, 0)
