# SPDX-License-Identifier: Apache-2.0

"""The first candidate is the one whose accelerators suit the guest best."""

from collections.abc import Mapping
from typing import Any

import pytest

from os_acc.objects.numa import NUMACell, NUMAPolicy, NUMATopology
from os_acc.scheduling import candidate_order
from os_acc.scheduling.candidate_order import (
    Candidate,
    Fit,
    GroupRequirements,
    HostView,
    ProviderState,
)

GPU = "CUSTOM_ACCELERATOR_GPU"
FUNCTION = "3a7ab2f4-4f15-4d36-9c2e-0b6a3d0d6f01"
#: Cells 0 and 1 are on one socket, cell 2 is on another.
HOST = NUMATopology(
    tuple(
        NUMACell(number, frozenset({number}), memory=64, socket=number // 2)
        for number in range(3)
    )
)
ONE_IN = {
    f"in-{cell}": ProviderState(frozenset({cell}), free={GPU: 1}) for cell in range(3)
}
UNKNOWN = {"unknown": ProviderState(free={GPU: 1})}


def candidate(*providers: str) -> Candidate:
    """Return a candidate with one GPU of each provider, each for a group."""
    return {
        "allocations": {
            "host": {"resources": {"VCPU": 1}},
            **{each: {"resources": {GPU: 1}} for each in providers},
        },
        "mappings": {
            "": ["host"],
            **{str(place): [each] for place, each in enumerate(providers)},
        },
    }


def requirements(
    policy: NUMAPolicy, number: int = 2, function: str = ""
) -> dict[str, GroupRequirements]:
    return {
        str(place): GroupRequirements(frozenset({GPU}), policy, function)
        for place in range(number)
    }


def nova(*order: int, room: tuple[int, ...] = (0, 1, 2)) -> Fit:
    """Return Nova's fit of a guest with one cell, which prefers cells in this order."""

    def fit(_candidate: Candidate, cells: frozenset[int]) -> tuple[int, ...] | None:
        suitable = [each for each in order if each in room and cells <= {each}]
        return (suitable[0],) if suitable else None

    return fit


def anywhere(_candidate: Candidate, _cells: frozenset[int]) -> tuple[int, ...]:
    """Return the cells of a guest without NUMA topology."""
    return ()


def ordered(
    names: list[str],
    policy: NUMAPolicy,
    fit: Fit,
    providers: Mapping[str, ProviderState] | None = None,
    **more: Any,
) -> list[tuple[str, set[int]]]:
    """Return the providers of the remaining candidates, and the cells to bind."""
    view = HostView(HOST, ONE_IN | UNKNOWN if providers is None else providers, {})
    found = candidate_order.order(
        [candidate(name) for name in names], requirements(policy, **more), view, fit
    )
    return [
        (choice.candidate["mappings"]["0"][0], set(choice.cells)) for choice in found
    ]


# -- NUMA cells ----------------------------------------------------------------


def test_the_candidate_in_the_cell_of_nova_s_choice_is_first():
    found = ordered(["in-0", "in-1"], NUMAPolicy.REQUIRED, nova(1, 0, 2))
    assert found == [("in-0", {0}), ("in-1", {1})]
    full = nova(1, 2, room=(1, 2))
    assert ordered(["in-0", "in-1"], NUMAPolicy.REQUIRED, full) == [("in-1", {1})]


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        (NUMAPolicy.REQUIRED, ["in-0", "unknown"]),
        (NUMAPolicy.LEGACY, ["in-0", "unknown"]),
        (NUMAPolicy.SOCKET, ["in-0", "unknown", "in-1"]),
        (NUMAPolicy.PREFERRED, ["in-0", "unknown", "in-1", "in-2"]),
    ],
)
def test_the_policy_drops_and_the_affinity_orders(policy, left):
    """Only cell 0 has room for the guest."""
    names = ["in-2", "in-1", "unknown", "in-0"]
    found = ordered(names, policy, nova(0, room=(0,)))
    assert [name for name, _cells in found] == left


def test_under_socket_a_guest_stays_on_the_socket_that_nova_chooses():
    (found,) = candidate_order.order(
        [candidate("in-0")],
        requirements(NUMAPolicy.SOCKET),
        HostView(HOST, ONE_IN, {}),
        nova(1, 2, room=(1, 2)),
    )
    assert found.cells == {1}


def test_under_socket_a_guest_goes_to_another_cell_of_the_socket():
    """Nova chooses the other socket; the cell of the accelerator has no room."""
    found = ordered(["in-0"], NUMAPolicy.SOCKET, nova(2, 1, room=(1, 2)))
    assert found == [("in-0", {1})]


def test_a_guest_under_preferred_is_not_bound_where_nova_places_it():
    assert ordered(["in-0"], NUMAPolicy.PREFERRED, nova(0)) == [("in-0", set())]
    assert ordered(["in-0"], NUMAPolicy.PREFERRED, nova(1, 0)) == [("in-0", {0})]


@pytest.mark.parametrize("policy", list(NUMAPolicy))
def test_providers_that_are_not_known_are_left_to_the_claim(policy):
    found = ordered(["a", "b"], policy, nova(0), providers={})
    assert found == [("a", set()), ("b", set())]


@pytest.mark.parametrize("policy", list(NUMAPolicy))
def test_a_guest_that_does_not_fit_has_no_candidate(policy):
    assert ordered(["in-0", "unknown"], policy, nova()) == []


def test_a_guest_without_cells_has_each_candidate():
    names = ["in-2", "unknown", "in-0"]
    found = ordered(names, NUMAPolicy.REQUIRED, anywhere)
    assert found == [(name, set()) for name in names]


def test_all_accelerators_of_a_guest_have_to_be_near_it():
    view = HostView(HOST, ONE_IN, {})
    pairs = [candidate("in-0", "in-1"), candidate("in-1", "in-1")]
    groups = requirements(NUMAPolicy.REQUIRED)
    (choice,) = candidate_order.order(pairs, groups, view, nova(0, 1))
    assert choice.candidate is pairs[1]
    assert choice.cells == {1}


def test_a_provider_with_several_cells_suits_a_guest_in_any_of_them():
    both = {"both": ProviderState(frozenset({1, 2}))}
    found = ordered(["both"], NUMAPolicy.REQUIRED, nova(0, 2, room=(0, 2)), both)
    assert found == [("both", {2})]


# -- functions -----------------------------------------------------------------

REGIONS = {
    "has-it": ProviderState(functions=frozenset({FUNCTION})),
    "programmable": ProviderState(is_programmable=True),
    "occupied": ProviderState(functions=frozenset({"another"})),
}


def test_a_region_that_has_the_function_is_first_and_none_is_dropped():
    """Placement knows the state of a region only after a while."""
    names = ["occupied", "programmable", "has-it"]
    found = ordered(names, NUMAPolicy.LEGACY, anywhere, REGIONS, function=FUNCTION)
    assert [name for name, _cells in found] == names[::-1]


def test_without_a_requested_function_the_order_stays():
    found = ordered(list(REGIONS), NUMAPolicy.LEGACY, anywhere, REGIONS)
    assert [name for name, _cells in found] == list(REGIONS)


def test_the_affinity_counts_more_than_the_function():
    providers = {
        "near": ProviderState(frozenset({0}), is_programmable=True),
        "far": ProviderState(frozenset({2}), frozenset({FUNCTION})),
    }
    found = ordered(
        ["far", "near"],
        NUMAPolicy.PREFERRED,
        nova(0, room=(0,)),
        providers,
        function=FUNCTION,
    )
    assert [name for name, _cells in found] == ["near", "far"]


# -- several servers of one request ----------------------------------------------


@pytest.mark.parametrize(
    ("providers", "first"),
    [
        ({"a": ProviderState(free={GPU: 1}), "b": ProviderState(free={GPU: 1})}, "b"),
        ({"a": ProviderState(free={GPU: 2}), "b": ProviderState(free={GPU: 1})}, "a"),
        ({}, "b"),
    ],
)
def test_a_provider_that_the_request_has_used_up_is_last(providers, first):
    view = HostView(HOST, providers, {("a", GPU): 1})
    both = [candidate("a"), candidate("b")]
    found = candidate_order.order(
        both, requirements(NUMAPolicy.REQUIRED), view, anywhere
    )
    assert found[0].candidate["mappings"]["0"] == [first]
    assert len(found) == 2


# -- candidates ----------------------------------------------------------------


def test_only_accelerators_of_the_groups_count():
    shared = {
        "allocations": {
            "host": {"resources": {"VCPU": 1, GPU: 2}},
            "nic": {"resources": {"CUSTOM_PCI_8086_1572": 1}},
        },
        "mappings": {"": ["host"], "0": ["host", "nic"], "9": ["nic"]},
    }
    (use,) = candidate_order.uses_of(shared, requirements(NUMAPolicy.LEGACY))
    assert (use.provider, use.units) == ("host", {GPU: 2})
