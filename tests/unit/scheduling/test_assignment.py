# SPDX-License-Identifier: Apache-2.0

"""Groups are assigned the providers that the scheduler selected for them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from os_acc import exception
from os_acc.objects.request import GroupPolicy, RequestGroup
from os_acc.scheduling.assignment import (
    MAX_GROUPS,
    MAX_PROVIDERS,
    AssignmentCase,
    ProviderAllocation,
    Served,
    assign,
)
from os_acc.scheduling.assignment.search import adds_up
from tests.expected_errors import has
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


def ours(provider: str, amount: int = 1, *traits: str) -> ProviderAllocation:
    return ProviderAllocation(provider, ((GPU, amount),), True, frozenset(traits))


def others(provider: str, amount: int = 1, *traits: str) -> ProviderAllocation:
    return ProviderAllocation(provider, ((GPU, amount),), False, frozenset(traits))


def served(
    groups: Sequence[RequestGroup],
    allocated: Sequence[ProviderAllocation],
    policy: GroupPolicy = NONE,
) -> dict[str, str]:
    """Return the provider of the GPUs of each group."""
    found = assign(AssignmentCase(groups, policy, allocated))
    return {each.suffix: each.provider for each in found if each.resource_class == GPU}


def refused(
    groups: Sequence[RequestGroup],
    allocated: Sequence[ProviderAllocation],
    policy: GroupPolicy = NONE,
) -> str:
    with pytest.raises(
        exception.InvalidAllocation,
        check=has(reason=exception.AllocationReason.NO_ASSIGNMENT),
    ) as caught:
        assign(AssignmentCase(groups, policy, allocated))
    assert caught.value.hint
    return caught.value.message


# -- amounts and classes --------------------------------------------------------


def test_what_is_ours_is_used_up() -> None:
    assert served([group("1"), group("2", 2)], [ours("a", 2), ours("b")]) == {
        "1": "b",
        "2": "a",
    }


def test_what_is_anothers_may_have_more() -> None:
    assert served([group("1")], [others("a", 5)]) == {"1": "a"}


def test_a_numbered_group_has_all_its_classes_from_one() -> None:
    pair = group("1", more={FPGA: 1})
    both = ProviderAllocation("b", ((FPGA, 1), (GPU, 1)), True)
    assert served([pair, group("2")], [ours("a"), both]) == {"1": "b", "2": "a"}
    halves = [ours("a"), ProviderAllocation("b", ((FPGA, 1),), True)]
    assert f"none of {FPGA}" in refused([pair], halves)


def test_the_unnumbered_group_has_each_class_from_one() -> None:
    halves = [ours("a"), ProviderAllocation("b", ((FPGA, 1),), True)]
    assert assign(AssignmentCase([group("", more={FPGA: 1})], None, halves)) == (
        Served("", FPGA, "b"),
        Served("", GPU, "a"),
    )
    assert "requests 2" in refused([group("", 2)], [ours("a"), ours("b")])


# -- traits --------------------------------------------------------------------


def test_a_numbered_group_has_its_traits_from_the_one_that_serves_it() -> None:
    places = [ours("a", 1, "T"), ours("b", 1, "T", "U")]
    assert served([group("1", 1, "T"), group("2", 1, "U")], places)["2"] == "b"
    assert served([group("1", 1, "T"), group("2", 1, "!U")], places)["2"] == "a"
    assert "lacks the trait V" in refused([group("1", 1, "V")], [ours("a")])
    wording = refused([group("1", 1, "!T")], [ours("a", 1, "T")])
    assert "has the forbidden trait T" in wording


def test_the_unnumbered_group_has_its_traits_between_those_that_serve_it() -> None:
    unnumbered = group("", 1, "T", "U", more={FPGA: 1})
    places = [
        ProviderAllocation("a", ((FPGA, 1),), True, frozenset({"U"})),
        ours("b"),
        ours("c", 1, "T"),
    ]
    assert served([unnumbered, group("1")], places) == {"": "c", "1": "b"}


def test_nobody_that_serves_the_unnumbered_group_has_what_it_forbids() -> None:
    unnumbered = group("", 1, "!T", more={FPGA: 1})
    card = ProviderAllocation("a", ((FPGA, 1),), True, frozenset({"T"}))
    assert "forbidden trait T" in refused([unnumbered], [card, ours("b")])


def test_what_is_not_known_of_a_trait_counts_as_one_wishes() -> None:
    unsure = ProviderAllocation("a", ((GPU, 1),), True, unsure=None)
    for rule in ("T", "!T"):
        assert assign(AssignmentCase([group("1", 1, rule)], None, [unsure]))
        with pytest.raises(
            exception.InvalidAllocation,
            check=has(reason=exception.AllocationReason.NO_ASSIGNMENT),
        ):
            assign(AssignmentCase([group("1", 1, rule)], None, [unsure], certain=True))


def test_who_has_a_trait_for_sure_is_preferred() -> None:
    maybe = ProviderAllocation("a", ((GPU, 1),), False, unsure=frozenset({"T"}))
    assert served([group("1", 1, "T")], [maybe, others("b", 1, "T")]) == {"1": "b"}


# -- isolation -------------------------------------------------------------------


def test_isolated_groups_have_a_provider_each() -> None:
    pair = [group("1"), group("2")]
    assert served(pair, [others("a", 2), others("b", 2)], ISOLATE) == {
        "1": "a",
        "2": "b",
    }
    assert "'isolate'" in refused(pair, [ours("a", 2)], ISOLATE)


def test_the_unnumbered_group_may_be_beside_an_isolated_one() -> None:
    unnumbered = group("", 2)
    both = [unnumbered, group("1"), group("2")]
    assert served(both, [ours("a", 3), ours("b")], ISOLATE)[""] == "a"
    assert "'isolate'" in refused(both, [ours("a", 2), ours("b", 2)], ISOLATE)


# -- pins ------------------------------------------------------------------------


def test_a_pin_holds() -> None:
    pair, places = [group("1"), group("2")], [ours("a"), ours("b")]
    found = assign(AssignmentCase(pair, NONE, places, pins={("2", GPU): "a"}))
    assert found == (Served("1", GPU, "b"), Served("2", GPU, "a"))
    with pytest.raises(
        exception.InvalidAllocation,
        check=has(reason=exception.AllocationReason.NO_ASSIGNMENT),
        match="c, which must serve it",
    ):
        assign(AssignmentCase(pair, NONE, places, pins={("2", GPU): "c"}))


# -- requests without an assignment ------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "allocated", "wording"),
    [
        ([group("1")], [], "group '1' requests 1 CUSTOM_GPU, but nothing is allocated"),
        ([group("1", 2)], [ours("a")], "only 1 CUSTOM_GPU on provider a"),
        ([group("1")], [ours("a"), ours("b")], "2 CUSTOM_GPU are allocated"),
        ([group("1"), group("2")], [ours("a")], "request 2 .*, but 1 are allocated"),
        (
            [group("1")],
            [ProviderAllocation("a", ((FPGA, 1),), True), ours("b")],
            "1 CUSTOM_FPGA are allocated .*no group requests any",
        ),
        (
            [group("", 1, "T")],
            [ours("a")],
            "the unnumbered group .* requires T, but no provider with the right",
        ),
        (
            [group("1", 1, "T"), group("2", 1, "T")],
            [ours("a", 1, "T"), ours("b")],
            "group '2' .* right traits is left beside group '1'",
        ),
        (
            [group("1", 2), group("2", 2)],
            [others("a", 3)],
            "request 4 .*, but 3",
        ),
        (
            [group("1", 2), group("2", 2), group("3", 2)],
            [others("a", 3), others("b", 3)],
            "group '3' .* no provider with enough resources is left beside group '1',"
            " group '2'",
        ),
        (
            [group("1", 2), group("2", 2)],
            [ours("a", 1), others("b", 5)],
            "1 CUSTOM_GPU are allocated on provider a, but no groups",
        ),
    ],
)
def test_the_reason_is_told(
    groups: list[RequestGroup], allocated: list[ProviderAllocation], wording: str
) -> None:
    with pytest.raises(
        exception.InvalidAllocation,
        check=has(reason=exception.AllocationReason.NO_ASSIGNMENT),
        match=wording,
    ):
        assign(AssignmentCase(groups, NONE, allocated))


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
        place = draw(places)
        for name, amount in each.resources:
            place[name] = place.get(name, 0) + amount
            place = place if each.suffix else draw(places)
    if draw(st.booleans()):
        place, name = draw(places), draw(st.sampled_from(classes))
        place[name] = place.get(name, 0) + draw(st.sampled_from((-1, 1)))
    return (
        groups,
        draw(st.sampled_from(GroupPolicy)),
        [
            ProviderAllocation(
                f"provider-{number}",
                tuple(sorted((name, n) for name, n in place.items() if n > 0)),
                draw(st.booleans()),
                draw(st.frozensets(st.sampled_from(TRAITS))),
            )
            for number, place in enumerate(there)
        ],
    )


@given(cases(), st.randoms())
@patient
def test_an_assignment_is_found_wherever_there_is_one(
    case: tuple[list[RequestGroup], GroupPolicy, list[ProviderAllocation]],
    order: random.Random,
) -> None:
    groups, policy, allocated = case
    right = every_assignment(groups, policy, allocated)
    try:
        found: object = assign(AssignmentCase(groups, policy, allocated))
        assert found in right
    except exception.InvalidAllocation as error:
        if error.reason is not exception.AllocationReason.NO_ASSIGNMENT:
            raise
        found = str(error)
        assert not right
    order.shuffle(groups)
    order.shuffle(allocated)
    try:
        again: object = assign(AssignmentCase(groups, policy, allocated))
    except exception.InvalidAllocation as error:
        if error.reason is not exception.AllocationReason.NO_ASSIGNMENT:
            raise
        again = str(error)
    assert again == found


@given(st.integers(0, 40), st.lists(st.tuples(st.integers(1, 9), st.integers(1, 4))))
def test_sums_are_those_that_amounts_make(
    target: int, amounts: list[tuple[int, int]]
) -> None:
    amounts = amounts[:4]
    ways = itertools.product(*(range(number + 1) for _amount, number in amounts))
    sums = {
        sum(taken * amount for taken, (amount, _n) in zip(way, amounts, strict=True))
        for way in ways
    }
    assert adds_up(target, tuple(amounts)) == (target in sums)


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
def test_the_largest_request_of_equals_is_assigned(policy: GroupPolicy) -> None:
    groups = [group(f"g{n:02}") for n in range(MAX_GROUPS)]
    places = [
        *(ours(f"p{n:03}") for n in range(MAX_GROUPS)),
        *(others(f"q{n:03}") for n in range(MAX_PROVIDERS - MAX_GROUPS)),
    ]
    assert set(served(groups, places, policy).values()) == {
        each.provider for each in places if each.exact
    }


@pytest.mark.parametrize("seed", range(5))
def test_mixed_amounts_are_divided_without_rest(seed: int) -> None:
    groups = shuffled(MAX_GROUPS, seed, most=8)
    places = packed(groups, 4)
    found = served(groups, places)
    for place in places:
        members = [each for each in groups if found[each.suffix] == place.provider]
        assert ((GPU, sum(each.amount(GPU) for each in members)),) == place.resources


def test_one_too_few_is_seen_without_a_search() -> None:
    # Each group needs a provider with its trait; one provider is missing.
    groups = [group(f"g{n:02}", 1, "TU"[n % 2]) for n in range(MAX_GROUPS)]
    places = [others(f"p{n:03}", 1, "T", "U") for n in range(MAX_GROUPS - 1)]
    places += [others(f"q{n:03}", 1, "V") for n in range(64)]
    for policy in GroupPolicy:
        with pytest.raises(
            exception.InvalidAllocation,
            check=has(reason=exception.AllocationReason.NO_ASSIGNMENT),
            match="right traits",
        ):
            assign(AssignmentCase(groups, policy, places), budget=500)


def test_one_too_few_is_seen_where_no_two_groups_are_alike() -> None:
    # Each group may be on all suitable providers but one; one provider is missing.
    groups = [group(f"g{n:02}", 1, "T", f"!N{n}") for n in range(16)]
    places = [others(f"p{n:02}", 1, "T", f"N{n}") for n in range(15)]
    places += [others(f"q{n:02}", 1) for n in range(16)]
    for policy in GroupPolicy:
        with pytest.raises(
            exception.InvalidAllocation,
            check=has(reason=exception.AllocationReason.NO_ASSIGNMENT),
            match="right traits",
        ):
            assign(AssignmentCase(groups, policy, places), budget=500)


def test_the_budget_is_counted_in_steps() -> None:
    groups = shuffled(16, 1, most=100)
    places = packed(groups, 8)
    assert assign(AssignmentCase(groups, NONE, places))
    with pytest.raises(
        exception.InvalidAllocation,
        check=has(reason=exception.AllocationReason.TOO_HARD),
        match="exceeded 3 steps",
    ) as caught:
        assign(AssignmentCase(groups, NONE, places), budget=3)
    assert "mappings" in caught.value.hint


def test_more_than_the_bounds_is_refused_at_once() -> None:
    many = [group(f"g{n}") for n in range(MAX_GROUPS + 1)]
    with pytest.raises(
        exception.InvalidAllocation,
        check=has(reason=exception.AllocationReason.TOO_LARGE),
        match="65 request groups",
    ):
        assign(AssignmentCase(many, NONE, [others("a", 100)]))
    places = [others(f"p{n}") for n in range(MAX_PROVIDERS + 1)]
    with pytest.raises(
        exception.InvalidAllocation,
        check=has(reason=exception.AllocationReason.TOO_LARGE),
        match="513 providers",
    ):
        assign(AssignmentCase([group("1")], NONE, places))
    classes = {f"CUSTOM_{n}": 1 for n in range(256)}
    with pytest.raises(
        exception.InvalidAllocation,
        check=has(reason=exception.AllocationReason.TOO_LARGE),
        match="257 resource classes",
    ):
        assign(AssignmentCase([group("", more=classes)], NONE, [ours("a")]))
