# SPDX-License-Identifier: Apache-2.0

"""Groups are assigned the providers that the scheduler selected for them."""

import itertools
import random
import re
from collections.abc import Collection, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from os_acc import exception
from os_acc.objects.request_group import GroupPolicy, RequestGroup
from os_acc.scheduling.assignment import (
    MAX_GROUPS,
    MAX_PROVIDERS,
    ProviderAllocation,
    adds_up,
    assign,
)
from tests.expected_errors import raises
from tests.unit.scheduling.assignment_oracle import every_assignment

GPU, FPGA, VCPU = "CUSTOM_GPU", "CUSTOM_FPGA", "VCPU"
NONE, ISOLATE = GroupPolicy.NONE, GroupPolicy.ISOLATE
patient = settings(
    deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow]
)


def group(
    suffix: str, amount: int = 1, *rules: str, more: dict[str, int] | None = None
) -> RequestGroup:
    """Return a group of GPUs and more; a rule is a trait, or '!' and a trait."""
    return RequestGroup(
        suffix,
        tuple(sorted(({GPU: amount} | (more or {})).items())),
        frozenset(rule for rule in rules if not rule.startswith("!")),
        frozenset(rule[1:] for rule in rules if rule.startswith("!")),
    )


def place(
    provider: str, resources: dict[str, int], exact: bool, traits: Collection[str] = ()
) -> ProviderAllocation:
    has = frozenset(traits)
    return ProviderAllocation(
        provider, tuple(sorted(resources.items())), exact, has, has
    )


def ours(provider: str, amount: int = 1, *traits: str) -> ProviderAllocation:
    return place(provider, {GPU: amount}, True, traits)


def others(provider: str, amount: int = 1, *traits: str) -> ProviderAllocation:
    return place(provider, {GPU: amount}, False, traits)


def card(provider: str, *traits: str) -> ProviderAllocation:
    return place(provider, {FPGA: 1}, True, traits)


def served(
    groups: Sequence[RequestGroup],
    allocated: Sequence[ProviderAllocation],
    policy: GroupPolicy = NONE,
) -> dict[str, str]:
    """Return the provider of the GPUs of each group."""
    found = assign(groups, policy, allocated)
    return {suffix: at for (suffix, name), at in found.items() if name == GPU}


def refused(
    groups: Sequence[RequestGroup],
    allocated: Sequence[ProviderAllocation],
    policy: GroupPolicy = NONE,
    reason: exception.AllocationReason = exception.AllocationReason.NO_ASSIGNMENT,
    **options: Any,
) -> str:
    """Return the message of the error."""
    with raises(reason) as caught:
        assign(groups, policy, allocated, **options)
    assert caught.value.hint
    return caught.value.message


# -- amounts and classes --------------------------------------------------------


def test_what_is_ours_is_used_up():
    assert served([group("1"), group("2", 2)], [ours("a", 2), ours("b")]) == {
        "1": "b",
        "2": "a",
    }


def test_what_is_anothers_may_have_more():
    assert served([group("1")], [others("a", 5)]) == {"1": "a"}


def test_a_numbered_group_has_all_its_classes_from_one():
    pair = group("1", more={FPGA: 1})
    both = place("b", {FPGA: 1, GPU: 1}, True)
    assert served([pair, group("2")], [ours("a"), both]) == {"1": "b", "2": "a"}
    assert f"none of {FPGA}" in refused([pair], [ours("a"), card("b")])


def test_the_unnumbered_group_has_each_class_from_one():
    halves = [ours("a"), card("b")]
    assert assign([group("", more={FPGA: 1})], None, halves) == {
        ("", FPGA): "b",
        ("", GPU): "a",
    }
    assert "requires 2" in refused([group("", 2)], [ours("a"), ours("b")])


# -- traits --------------------------------------------------------------------


def test_a_numbered_group_has_its_traits_from_the_one_that_serves_it():
    places = [ours("a", 1, "T"), ours("b", 1, "T", "U")]
    assert served([group("1", 1, "T"), group("2", 1, "U")], places)["2"] == "b"
    assert served([group("1", 1, "T"), group("2", 1, "!U")], places)["2"] == "a"
    assert "lacks the trait V" in refused([group("1", 1, "V")], [ours("a")])
    wording = refused([group("1", 1, "!T")], [ours("a", 1, "T")])
    assert "has the forbidden trait T" in wording


def test_the_unnumbered_group_has_its_traits_between_those_that_serve_it():
    unnumbered = group("", 1, "T", "U", more={FPGA: 1})
    places = [card("a", "U"), ours("b"), ours("c", 1, "T")]
    assert served([unnumbered, group("1")], places) == {"": "c", "1": "b"}


def test_nobody_that_serves_the_unnumbered_group_has_what_it_forbids():
    unnumbered = group("", 1, "!T", more={FPGA: 1})
    assert "forbidden trait T" in refused([unnumbered], [card("a", "T"), ours("b")])


# -- isolation -------------------------------------------------------------------


def test_isolated_groups_have_a_provider_each():
    pair = [group("1"), group("2")]
    assert served(pair, [others("a", 2), others("b", 2)], ISOLATE) == {
        "1": "a",
        "2": "b",
    }
    assert "'isolate'" in refused(pair, [ours("a", 2)], ISOLATE)


def test_the_unnumbered_group_may_be_beside_an_isolated_one():
    unnumbered = group("", 2)
    both = [unnumbered, group("1"), group("2")]
    assert served(both, [ours("a", 3), ours("b")], ISOLATE)[""] == "a"
    assert "'isolate'" in refused(both, [ours("a", 2), ours("b", 2)], ISOLATE)


# -- pins ------------------------------------------------------------------------


def test_a_pin_holds():
    pair, places = [group("1"), group("2")], [ours("a"), ours("b")]
    found = assign(pair, NONE, places, pins={("2", GPU): "a"})
    assert found == {("1", GPU): "b", ("2", GPU): "a"}
    wording = refused(pair, places, pins={("2", GPU): "c"})
    assert "c, which must serve it" in wording


# -- requests without an assignment ------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "allocated", "wording"),
    [
        ([group("1")], [], "group '1' requires 1 CUSTOM_GPU, but nothing is allocated"),
        ([group("1", 2)], [ours("a")], "only 1 CUSTOM_GPU on provider a"),
        ([group("1")], [ours("a"), ours("b")], "2 CUSTOM_GPU are allocated"),
        (
            [group("1"), group("2")],
            [ours("a")],
            "group '1', group '2' request 2 CUSTOM_GPU, but .* have 1",
        ),
        (
            [group("1")],
            [card("a"), ours("b")],
            "1 CUSTOM_FPGA are allocated .*groups request none",
        ),
        (
            [group("", 1, "T")],
            [ours("a")],
            "the unnumbered group .* requires T, but no suitable provider",
        ),
        (
            [group("1"), group("2", 1, "!T")],
            [ours("a", 2, "T")],
            "^group '2' .* forbids T, but provider a has the forbidden trait T",
        ),
        (
            [group("1", 1, "T"), group("2", 1, "T")],
            [ours("a", 1, "T"), ours("b")],
            "group '1', group '2' request 2 .* that can serve them have 1",
        ),
        (
            [group("1", 2), group("2", 2), group("3", 2)],
            [others("a", 3), others("b", 3)],
            "group '3' .* no suitable provider is left beside group '1', group '2'",
        ),
        (
            [group("1", 2), group("2", 2)],
            [ours("a", 1), others("b", 5)],
            "1 CUSTOM_GPU are allocated on provider a, but no groups",
        ),
    ],
)
def test_the_reason_is_told(groups, allocated, wording):
    assert re.search(wording, refused(groups, allocated))


# -- random cases ------------------------------------------------------------------

TRAITS = ("T", "U")


@st.composite
def cases(
    draw: st.DrawFn,
) -> tuple[list[RequestGroup], GroupPolicy, list[ProviderAllocation]]:
    """Draw groups, and allocations that match them or nearly match them."""
    classes = (GPU, FPGA, VCPU)[: draw(st.integers(1, 3))]
    amounts = st.dictionaries(
        st.sampled_from(classes), st.integers(1, 3), min_size=1, max_size=2
    )
    rules = st.dictionaries(st.sampled_from(TRAITS), st.booleans(), max_size=2)
    suffixes = draw(st.lists(st.sampled_from(["", *"1234"]), min_size=1, unique=True))
    groups = [
        RequestGroup(
            suffix,
            tuple(sorted(draw(amounts).items())),
            frozenset(name for name, wanted in ruled.items() if wanted),
            frozenset(name for name, wanted in ruled.items() if not wanted),
        )
        for suffix in suffixes
        for ruled in [draw(rules)]
    ]
    there: list[dict[str, int]] = [{} for _ in range(draw(st.integers(1, 4)))]
    places = st.sampled_from(there)
    for each in groups:
        at = draw(places)
        for name, amount in each.resources:
            at[name] = at.get(name, 0) + amount
            at = at if each.suffix else draw(places)
    if draw(st.booleans()):
        at, name = draw(places), draw(st.sampled_from(classes))
        at[name] = at.get(name, 0) + draw(st.sampled_from((-1, 1)))
    return (
        groups,
        draw(st.sampled_from(GroupPolicy)),
        [
            place(
                f"provider-{number}",
                {name: n for name, n in resources.items() if n > 0},
                draw(st.booleans()),
                draw(st.frozensets(st.sampled_from(TRAITS))),
            )
            for number, resources in enumerate(there)
        ],
    )


@given(cases(), st.randoms())
@patient
def test_an_assignment_is_found_wherever_there_is_one(case, order):
    groups, policy, allocated = case
    right = every_assignment(groups, policy, allocated)

    def answer() -> object:
        try:
            return assign(groups, policy, allocated)
        except exception.InvalidAllocation as error:
            if error.reason is not exception.AllocationReason.NO_ASSIGNMENT:
                raise
            return str(error)

    found = answer()
    assert found in right if right else isinstance(found, str)
    order.shuffle(groups)
    order.shuffle(allocated)
    assert answer() == found


@given(st.integers(0, 40), st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4))))
def test_sums_are_those_that_amounts_make(target, amounts):
    amounts = amounts[:4]
    ways = itertools.product(*(range(number + 1) for _amount, number in amounts))
    sums = {
        sum(taken * amount for taken, (amount, _n) in zip(way, amounts, strict=True))
        for way in ways
    }
    assert adds_up(target, amounts) == (target in sums)


# -- size ----------------------------------------------------------------------------


def shuffled(size: int, seed: int, *, most: int) -> list[RequestGroup]:
    amounts = random.Random(seed)
    return [group(f"g{n:02}", amounts.randint(1, most)) for n in range(size)]


def packed(groups: Sequence[RequestGroup], size: int) -> list[ProviderAllocation]:
    """Return our providers, each fully used by ``size`` of these groups."""
    return [
        ours(f"p{start:02}", sum(each.amount(GPU) for each in groups[start::stride]))
        for stride in [len(groups) // size]
        for start in range(stride)
    ]


@pytest.mark.parametrize("policy", list(GroupPolicy))
def test_the_largest_request_of_equals_is_assigned(policy):
    groups = [group(f"g{n:02}") for n in range(MAX_GROUPS)]
    places = [
        *(ours(f"p{n:03}") for n in range(MAX_GROUPS)),
        *(others(f"q{n:03}") for n in range(MAX_PROVIDERS - MAX_GROUPS)),
    ]
    assert set(served(groups, places, policy).values()) == {
        each.provider for each in places if each.exact
    }


@pytest.mark.parametrize("seed", range(5))
def test_mixed_amounts_are_divided_without_rest(seed):
    groups = shuffled(MAX_GROUPS, seed, most=8)
    places = packed(groups, 4)
    found = served(groups, places)
    for place in places:
        members = [each for each in groups if found[each.suffix] == place.provider]
        assert ((GPU, sum(each.amount(GPU) for each in members)),) == place.resources


@pytest.mark.parametrize("policy", list(GroupPolicy))
@pytest.mark.parametrize("alike", [True, False])
def test_one_too_few_is_seen_without_a_search(alike, policy):
    # One provider with the trait is missing; and each group may be on all of them, or
    # on all but one.
    rules = [("T",) if alike else ("T", f"!N{n}") for n in range(MAX_GROUPS)]
    groups = [group(f"g{n:02}", 1, *rule) for n, rule in enumerate(rules)]
    places = [others(f"p{n:03}", 1, "T", f"N{n}") for n in range(MAX_GROUPS - 1)]
    places += [others(f"q{n:03}", 1, "V") for n in range(64)]
    assert "can serve them" in refused(groups, places, policy, budget=0)


def test_the_budget_is_counted_in_steps():
    groups = shuffled(16, 1, most=100)
    places = packed(groups, 8)
    assert assign(groups, NONE, places)
    reason = exception.AllocationReason.TOO_HARD
    assert "exceeded 3 steps" in refused(groups, places, reason=reason, budget=3)


CLASSES = {f"CUSTOM_{n}": 1 for n in range(256)}


@pytest.mark.parametrize(
    ("groups", "places", "wording"),
    [
        (
            [group(f"g{n}") for n in range(MAX_GROUPS + 1)],
            [others("a", 100)],
            "65 request groups",
        ),
        (
            [group("1")],
            [others(f"p{n}") for n in range(MAX_PROVIDERS + 1)],
            "513 providers",
        ),
        ([group("", more=CLASSES)], [ours("a")], "257 resource classes"),
    ],
)
def test_more_than_the_bounds_is_refused_at_once(groups, places, wording):
    reason = exception.AllocationReason.TOO_LARGE
    assert wording in refused(groups, places, reason=reason)
