# SPDX-License-Identifier: Apache-2.0

"""Groups get their accelerators from the providers that Placement selected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from os_acc import exception
from os_acc.objects.request_group import (
    Allocations,
    FlavorRequest,
    GroupAllocation,
    SingleProvider,
)
from os_acc.scheduling import extra_specs
from os_acc.scheduling.matching import match_groups
from os_acc.scheduling.missing_mappings import TraitView
from tests.expected_errors import raises

NODE = "00000000-0000-4000-8000-000000000000"
GPU_A = "aaaaaaaa-0000-4000-8000-000000000001"
GPU_B = "aaaaaaaa-0000-4000-8000-000000000002"
CARD = "ffffffff-0000-4000-8000-000000000001"
GPU = "CUSTOM_ACCELERATOR_GPU"
FPGA = "CUSTOM_ACCELERATOR_FPGA"
OURS = {GPU_A: GPU, GPU_B: GPU, CARD: FPGA}
NODE_PART = (NODE, (("MEMORY_MB", 2048), ("VCPU", 2)))


def flavor(policy: str = "none", **groups: int | tuple[str, int]) -> FlavorRequest:
    """Return groups by suffix (g1=2: two GPUs in group 1); g: the unnumbered one."""
    specs: dict[str, object] = {"resources:VCPU": "2", "group_policy": policy}
    for name, wanted in groups.items():
        resource_class, amount = wanted if isinstance(wanted, tuple) else (GPU, wanted)
        specs[f"resources{name[1:]}:{resource_class}"] = str(amount)
    return extra_specs.parse(specs)


def allocated(
    *parts: tuple[str, str, int], mappings: dict[str, list[str]] | None = None
) -> Allocations:
    return Allocations(
        (NODE_PART, *((rp, ((rc, amount),)) for rp, rc, amount in parts)),
        None
        if mappings is None
        else tuple((suffix, tuple(rps)) for suffix, rps in mappings.items()),
    )


# -- one provider ------------------------------------------------------------


def test_one_provider_serves_every_group_that_asks_for_its_class():
    assert match_groups(flavor(g=1, g1=2, g2=3), SingleProvider(GPU_A), OURS) == (
        GroupAllocation("", GPU_A, GPU, 1),
        GroupAllocation("1", GPU_A, GPU, 2),
        GroupAllocation("2", GPU_A, GPU, 3),
    )


def test_groups_of_others_are_ignored():
    request = flavor(g1=1, g2=("SRIOV_NET_VF", 1))
    assert match_groups(request, SingleProvider(GPU_A), OURS) == (
        GroupAllocation("1", GPU_A, GPU, 1),
    )


def test_one_provider_that_is_not_ours_is_not_found():
    with pytest.raises(exception.ProviderNotFound, match=NODE):
        match_groups(flavor(g1=1), SingleProvider(NODE), OURS)


@pytest.mark.parametrize("request_", [flavor(), FlavorRequest()])
def test_one_provider_that_no_group_asks_for_is_an_error(request_):
    with pytest.raises(exception.InvalidAllocation, match=GPU):
        match_groups(request_, SingleProvider(GPU_A), OURS)


def test_one_provider_is_not_enough_for_two_of_our_classes():
    with pytest.raises(exception.InvalidAllocation, match=FPGA):
        match_groups(flavor(g1=1, g2=(FPGA, 1)), SingleProvider(GPU_A), OURS)


# -- group_policy ------------------------------------------------------------

BOTH_ON_A = {"1": [GPU_A], "2": [GPU_A]}


@pytest.mark.parametrize(
    "selection",
    [
        SingleProvider(GPU_A),
        allocated((GPU_A, GPU, 2), mappings=BOTH_ON_A),
        allocated((GPU_A, GPU, 2)),
    ],
)
def test_isolated_groups_cannot_share_a_provider(selection):
    with pytest.raises(exception.InvalidAllocation, match="isolate"):
        match_groups(flavor("isolate", g1=1, g2=1), selection, OURS)


# -- allocations with mappings -----------------------------------------------


def test_mappings_say_which_provider_serves_which_group():
    selection = allocated(
        (GPU_A, GPU, 1),
        (GPU_B, GPU, 1),
        (CARD, FPGA, 1),
        mappings={"": [NODE], "1": [GPU_B], "2": [GPU_A], "3": [CARD]},
    )
    request = flavor(g1=1, g2=1, g3=(FPGA, 1))
    assert match_groups(request, selection, OURS) == (
        GroupAllocation("1", GPU_B, GPU, 1),
        GroupAllocation("2", GPU_A, GPU, 1),
        GroupAllocation("3", CARD, FPGA, 1),
    )


def test_the_unnumbered_group_may_have_several_providers():
    selection = allocated(
        (GPU_A, GPU, 2), (CARD, FPGA, 1), mappings={"": [NODE, GPU_A, CARD]}
    )
    request = extra_specs.parse(
        {"resources:VCPU": "2", f"resources:{GPU}": "2", f"resources:{FPGA}": "1"}
    )
    assert match_groups(request, selection, OURS) == (
        GroupAllocation("", GPU_A, GPU, 2),
        GroupAllocation("", CARD, FPGA, 1),
    )


def test_amounts_that_do_not_add_up_are_both_named():
    selection = allocated((GPU_A, GPU, 4), mappings=BOTH_ON_A)
    with pytest.raises(exception.InvalidAllocation, match=r"4 .* request 3"):
        match_groups(flavor(g1=1, g2=2), selection, OURS)


def test_without_a_flavor_mapping_and_allocation_decide():
    selection = allocated(
        (GPU_A, GPU, 2), (CARD, FPGA, 1), mappings={"": [NODE], "x": [GPU_A, CARD]}
    )
    assert match_groups(FlavorRequest(), selection, OURS) == (
        GroupAllocation("x", GPU_A, GPU, 2),
        GroupAllocation("x", CARD, FPGA, 1),
    )


def test_without_a_flavor_a_shared_provider_cannot_be_divided():
    selection = allocated((GPU_A, GPU, 2), mappings=BOTH_ON_A)
    with pytest.raises(exception.InvalidAllocation, match="extra specs"):
        match_groups(FlavorRequest(), selection, OURS)


@pytest.mark.parametrize(
    ("mappings", "named"),
    [
        ({"": [NODE]}, "lack a group"),
        ({}, "lack a group"),
        ({"7": [GPU_A]}, "'7'"),
        ({"": [NODE, GPU_A]}, "'1'"),
    ],
)
def test_mappings_that_do_not_fit_the_flavor_are_an_error(mappings, named):
    selection = allocated((GPU_A, GPU, 1), mappings=mappings)
    with pytest.raises(exception.InvalidAllocation, match=named):
        match_groups(flavor(g=1, g1=1), selection, OURS)


@pytest.mark.parametrize("mappings", [None, {"1": [GPU_A]}, {"1": [GPU_A, GPU_B]}])
def test_the_amount_of_a_class_is_never_split_over_providers(mappings):
    halves = allocated((GPU_A, GPU, 1), (GPU_B, GPU, 1), mappings=mappings)
    with pytest.raises(exception.InvalidAllocation):
        match_groups(flavor(g1=2), halves, OURS)
    whole = allocated((GPU_A, GPU, 2))
    assert match_groups(flavor(g1=2), whole, OURS) == (
        GroupAllocation("1", GPU_A, GPU, 2),
    )


@pytest.mark.parametrize("mappings", [None, {"1": [GPU_A, GPU_B]}])
def test_a_group_is_not_served_twice(mappings):
    selection = allocated((GPU_A, GPU, 1), (GPU_B, GPU, 1), mappings=mappings)
    with pytest.raises(exception.InvalidAllocation, match=GPU_B):
        match_groups(flavor(g1=1), selection, OURS)


# -- allocations alone -------------------------------------------------------


@pytest.mark.parametrize("mappings", [None, {"": [NODE], "1": [NODE]}])
def test_allocations_without_a_provider_of_ours_ask_nothing_of_us(mappings):
    assert match_groups(flavor(g1=1), allocated(mappings=mappings), OURS) == ()


@pytest.mark.parametrize("mappings", [None, {"1": [GPU_A]}])
def test_a_class_that_our_provider_does_not_have_is_an_error(mappings):
    selection = Allocations(
        ((GPU_A, ((GPU, 1), ("VGPU", 1))),),
        None if mappings is None else (("1", (GPU_A,)),),
    )
    with pytest.raises(exception.InvalidAllocation, match="VGPU"):
        match_groups(flavor(g1=1), selection, OURS)


def test_without_mappings_and_flavor_the_allocations_decide():
    selection = allocated((GPU_A, GPU, 2), (GPU_B, GPU, 1))
    assert match_groups(FlavorRequest(), selection, OURS) == (
        GroupAllocation("", GPU_A, GPU, 2),
        GroupAllocation("", GPU_B, GPU, 1),
    )


def test_without_mappings_another_service_may_have_the_same_class():
    others = "cccccccc-0000-4000-8000-000000000001"
    selection = allocated((GPU_A, GPU, 2), (others, GPU, 1))
    assert match_groups(flavor(g1=1, g2=2), selection, OURS) == (
        GroupAllocation("2", GPU_A, GPU, 2),
    )


def test_what_a_guest_still_has_on_the_host_it_leaves_is_left_alone():
    source = "00000000-0000-4000-8000-000000000009"
    selection = Allocations(
        (
            NODE_PART,
            (source, (("MEMORY_MB", 2048), ("VCPU", 2))),
            ("aaaaaaaa-0000-4000-8000-000000000000", ((GPU, 1),)),
            ("aaaaaaaa-0000-4000-8000-000000000009", ((GPU, 2),)),
            (GPU_B, ((GPU, 3),)),
        )
    )
    assert match_groups(flavor(g1=1, g2=2), selection, OURS) == (
        GroupAllocation("1", GPU_B, GPU, 1),
        GroupAllocation("2", GPU_B, GPU, 2),
    )


# -- traits --------------------------------------------------------------------

FAST, PLACE, AFU = "CUSTOM_FAST", "CUSTOM_RACK_7", "CUSTOM_AFU"
OWN = {GPU_A: frozenset[str](), GPU_B: frozenset({FAST}), CARD: frozenset[str]()}
TWO = allocated((GPU_A, GPU, 1), (GPU_B, GPU, 1))
SWAPPED = {"1": GPU_B, "2": GPU_A}
IN_ORDER = {"1": GPU_A, "2": GPU_B}


def rules(**groups: str) -> FlavorRequest:
    """Return two groups of one GPU; g1=T requires, not1=T forbids a trait."""
    specs = {f"resources{suffix}:{GPU}": "1" for suffix in "12"}
    for name, trait in groups.items():
        kind = "forbidden" if name.startswith("not") else "required"
        specs[f"trait{name[-1]}:{trait}"] = kind
    return extra_specs.parse(specs | {"group_policy": "none"})


def served(
    request: FlavorRequest,
    known: TraitView,
    recorded: dict[tuple[str, str], str] | None = None,
) -> dict[str, str]:
    found = match_groups(request, TWO, OURS, known, recorded or {})
    return {one.group_suffix: one.provider_uuid for one in found}


@pytest.mark.parametrize("request_", [rules(g1=FAST), rules(not2=FAST)])
def test_what_a_device_is_decides(request_):
    assert served(request_, TraitView(own=OWN)) == SWAPPED


def test_what_an_operator_has_set_decides_where_nova_told_of_it():
    published = {GPU_A: frozenset[str](), GPU_B: frozenset({PLACE})}
    known = TraitView(own=OWN, published=published)
    assert served(rules(g1=PLACE), known) == SWAPPED
    assert served(rules(not1=PLACE), known) == IN_ORDER


def test_a_trait_of_which_nothing_is_known_rules_nobody_out():
    assert served(rules(g1=PLACE), TraitView(own=OWN)) == IN_ORDER
    assert served(rules(g1=PLACE, g2=PLACE), TraitView(own=OWN)) == IN_ORDER
    assert served(rules(not1=PLACE), TraitView()) == IN_ORDER


def test_who_is_known_to_have_a_trait_comes_first():
    known = TraitView(own=OWN, published={GPU_B: frozenset({PLACE})})
    assert served(rules(g1=PLACE), known) == SWAPPED


def test_what_nova_knows_of_operators_traits_may_be_old():
    published = {GPU_A: frozenset[str](), GPU_B: frozenset[str]()}
    known = TraitView(own=OWN, published=published)
    # The trait is set in Placement, but not yet in Nova's copy.
    assert served(rules(g1=PLACE, g2=FAST), known) == IN_ORDER
    assert served(rules(g1=FAST, g2=PLACE), known) == SWAPPED


def test_a_trait_that_comes_and_goes_is_doubted_last():
    own = {GPU_A: frozenset[str](), GPU_B: frozenset({AFU})}
    known = TraitView(own=own, changes=AFU.__eq__)
    assert served(rules(g1=AFU), known) == SWAPPED
    # The region of A has been programmed again since the scheduling.
    assert served(rules(g1=AFU, g2=AFU), known) == IN_ORDER


def test_what_a_device_is_can_be_no_mistake_of_the_schedulers():
    published = {GPU_A: frozenset[str](), GPU_B: frozenset[str]()}
    with raises(
        exception.AllocationReason.NO_ASSIGNMENT, match=f"can serve them|{FAST}"
    ):
        served(rules(g1=FAST, g2=FAST), TraitView(own=OWN, published=published))


def test_how_it_was_decided_before_stands_whatever_traits_say_now():
    recorded = {("1", GPU): GPU_A, ("2", GPU): GPU_B}
    assert served(rules(g1=FAST), TraitView(own=OWN), recorded) == IN_ORDER


def test_how_it_was_decided_before_does_not_bind_another_request():
    recorded = {("1", GPU): CARD, ("2", GPU): GPU_B}
    assert served(rules(g1=FAST), TraitView(own=OWN), recorded) == SWAPPED


def test_a_part_of_what_was_decided_before_is_enough():
    assert served(rules(), TraitView(), {("1", GPU): GPU_B}) == SWAPPED


def unnumbered(trait: str) -> FlavorRequest:
    return extra_specs.parse(
        {
            f"resources:{GPU}": "1",
            f"resources1:{GPU}": "1",
            f"trait:{trait}": "required",
        }
    )


def test_the_node_may_bring_the_trait_of_the_unnumbered_group():
    published = dict.fromkeys(OURS, frozenset[str]())
    known = TraitView(own=OWN, published=published | {NODE: frozenset({PLACE})})
    assert served(unnumbered(PLACE), known) == {"": GPU_A, "1": GPU_B}
    known = TraitView(
        own=OWN, published=published | {NODE: frozenset(), GPU_B: frozenset({PLACE})}
    )
    assert served(unnumbered(PLACE), known) == {"": GPU_B, "1": GPU_A}


# -- random cases ------------------------------------------------------------


@given(
    st.dictionaries(
        st.sampled_from("12345"),
        st.tuples(st.sampled_from(sorted(OURS)), st.integers(1, 4)),
        min_size=1,
    )
)
def test_what_placement_allocates_for_a_flavor_is_attributed_exactly(served):
    specs = {"resources:VCPU": "2", "group_policy": "none"}
    totals: dict[str, int] = {}
    for suffix, (provider, amount) in served.items():
        specs[f"resources{suffix}:{OURS[provider]}"] = str(amount)
        totals[provider] = totals.get(provider, 0) + amount
    selection = allocated(
        *((rp, OURS[rp], amount) for rp, amount in totals.items()),
        mappings={"": [NODE], **{s: [rp] for s, (rp, _n) in served.items()}},
    )
    request = extra_specs.parse(specs)
    expected = tuple(
        GroupAllocation(suffix, rp, OURS[rp], n)
        for suffix, (rp, n) in sorted(served.items())
    )
    assert match_groups(request, selection, OURS) == expected
