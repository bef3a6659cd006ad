# SPDX-License-Identifier: Apache-2.0

"""A flow has the maximum size, and the minimum cost for that size."""

from __future__ import annotations

import itertools
from collections import Counter

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
def test_no_other_flow_is_larger_or_as_large_and_cheaper(
    edges: Edges, wanted: int
) -> None:
    assert sent(edges, wanted) == best(edges, wanted)


def test_an_edge_from_the_source_to_the_sink_is_a_path() -> None:
    edges = [(SOURCE, SINK, 1, 0), (SINK, 1, 1, 0), (1, SINK, 1, 0)]
    assert sent(edges, 2) == (1, 0)
