# SPDX-License-Identifier: Apache-2.0

"""A flavor's groups become Nova's query; ``selected_rp`` is read or refused by name."""

import uuid
from urllib import parse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from os_acc import exception
from os_acc.objects.request_group import (
    Allocations,
    FlavorRequest,
    GroupPolicy,
    RequestGroup,
    SingleProvider,
)
from os_acc.scheduling import allocation_candidates, extra_specs
from os_acc.scheduling.allocation_candidates import filled, parse_selected_rp, query

FPGA = "CUSTOM_ACCELERATOR_FPGA"
ONE = {f"resources1:{FPGA}": "1"}


def asked(specs: dict[str, str], limit: int | None = None) -> dict[str, str]:
    """Return the parameters of a flavor's query."""
    return dict(parse.parse_qsl(query(extra_specs.parse(specs), limit)))


def test_the_specification_s_use_case_gives_its_query():
    specs = {
        "resources:VCPU": "2",
        "resources:MEMORY_MB": "2048",
        "trait:HW_CPU_X86_AVX": "required",
        "trait:CUSTOM_MAGIC": "required",
        "resources1:SRIOV_NET_VF": "1",
        "resources1:CUSTOM_NET_EGRESS_BYTES_SEC": "10000",
        "trait1:CUSTOM_PHYSNET_NET1": "required",
        "resources2:SRIOV_NET_VF": "1",
        "resources2:CUSTOM_NET_EGRESS_BYTES_SEC": "20000",
        "trait2:CUSTOM_PHYSNET_NET2": "required",
        "trait2:HW_NIC_ACCEL_SSL": "required",
        "group_policy": "none",
    }
    assert asked(specs) == {
        "group_policy": "none",
        "resources": "MEMORY_MB:2048,VCPU:2",
        "required": "CUSTOM_MAGIC,HW_CPU_X86_AVX",
        "resources1": "CUSTOM_NET_EGRESS_BYTES_SEC:10000,SRIOV_NET_VF:1",
        "required1": "CUSTOM_PHYSNET_NET1",
        "resources2": "CUSTOM_NET_EGRESS_BYTES_SEC:20000,SRIOV_NET_VF:1",
        "required2": "CUSTOM_PHYSNET_NET2,HW_NIC_ACCEL_SSL",
    }


def test_it_is_sorted_and_encoded_as_nova_does():
    specs = {
        **ONE,
        "trait1:CUSTOM_B": "required",
        "trait1:CUSTOM_A": "forbidden",
        "resources:VCPU": "1",
    }
    assert query(extra_specs.parse(specs)) == (
        "limit=1000&required1=CUSTOM_B%2C%21CUSTOM_A&resources=VCPU%3A1"
        f"&resources1={FPGA}%3A1"
    )


def test_a_group_without_traits_has_no_required():
    assert asked(ONE) == {"resources1": f"{FPGA}:1"}


@pytest.mark.parametrize("suffix", ["", "1", "_fast-2", "Z" * 64])
def test_every_suffix_that_placement_takes_is_passed_on(suffix):
    assert asked({f"resources{suffix}:VCPU": "3"}) == {f"resources{suffix}": "VCPU:3"}


@pytest.mark.parametrize(("limit", "passed"), [(None, {}), (7, {"limit": "7"})])
def test_a_limit_is_passed_where_there_is_one(limit, passed):
    assert asked(ONE, limit) == {"resources1": f"{FPGA}:1", **passed}


@pytest.mark.parametrize(
    ("more", "classes"),
    [
        ({}, (FPGA,)),
        ({"group_policy": "isolate"}, (FPGA,)),
        ({"group_policy": "none"}, ()),
        ({f"resources:{FPGA}": "0"}, ()),
    ],
)
def test_what_placement_miscounts_is_known(more, classes):
    specs = {**ONE, f"resources:{FPGA}": "1", "resources:VCPU": "1", **more}
    request = extra_specs.parse(specs)
    assert allocation_candidates.miscounted(request) == classes


def test_several_numbered_groups_are_counted_right():
    specs = {**ONE, f"resources2:{FPGA}": "1", "group_policy": "isolate"}
    assert allocation_candidates.miscounted(extra_specs.parse(specs)) == ()


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_placement_refuses_is_refused(limit):
    with pytest.raises(exception.InvalidInput, match=str(limit)):
        asked(ONE, limit)


def test_nothing_asked_for_is_no_query():
    with pytest.raises(exception.InvalidExtraSpec, match="requests no resources"):
        asked({"hw:cpu_policy": "dedicated", "resources1:VCPU": "0"})


def test_traits_alone_are_asked_for_with_the_flavor_s_own_amounts():
    request = extra_specs.parse({"trait:CUSTOM_X": "forbidden"})
    with pytest.raises(exception.InvalidExtraSpec, match="CUSTOM_X") as caught:
        query(request)
    assert "VCPU, MEMORY_MB and DISK_GB" in caught.value.hint
    whole = filled(request, vcpus=2, memory_mb=512, disk_gb=0)
    assert query(whole, None) == (
        "required=%21CUSTOM_X&resources=MEMORY_MB%3A512%2CVCPU%3A2"
    )


@pytest.mark.parametrize(
    ("specs", "unnumbered"),
    [
        ({}, {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 20}),
        ({"resources:VCPU": "4"}, {"VCPU": 4, "MEMORY_MB": 512, "DISK_GB": 20}),
        ({"resources:PCPU": "4"}, {"PCPU": 4, "MEMORY_MB": 512, "DISK_GB": 20}),
        ({"resources:DISK_GB": "0"}, {"VCPU": 2, "MEMORY_MB": 512}),
        ({"resources1:MEMORY_MB": "9"}, {"VCPU": 2, "DISK_GB": 20}),
        (
            {
                "resources:VCPU": "0",
                "resources:MEMORY_MB": "0",
                "resources9:DISK_GB": "0",
                **ONE,
            },
            {},
        ),
    ],
)
def test_the_flavor_s_own_amounts_give_way_to_its_extra_specs(specs, unnumbered):
    before = extra_specs.parse(specs)
    after = filled(before, vcpus=2, memory_mb=512, disk_gb=20)
    by_suffix = {group.suffix: group for group in after.groups}
    numbered = tuple(group for group in before.groups if group.suffix)
    assert dict(by_suffix.get("", RequestGroup("")).resources) == unnumbered
    assert tuple(group for group in after.groups if group.suffix) == numbered
    assert list(by_suffix) == sorted(by_suffix)


@pytest.mark.parametrize("amount", [-1, 2**31])
def test_an_amount_that_placement_cannot_count_is_refused(amount):
    with pytest.raises(exception.InvalidExtraSpec, match=str(amount)):
        filled(FlavorRequest(), vcpus=1, memory_mb=amount, disk_gb=1)


@pytest.mark.parametrize(
    ("groups", "policy", "named"),
    [
        ((RequestGroup("1"), RequestGroup("1")), GroupPolicy.NONE, "suffix '1'"),
        ((RequestGroup("1"), RequestGroup("2")), None, "1, 2"),
        ((RequestGroup("1", (), frozenset({"X"})),), None, "X"),
        (
            (RequestGroup("", (("VCPU", 1),), frozenset("XY"), frozenset("YZ")),),
            None,
            "forbids Y",
        ),
    ],
)
def test_groups_that_come_from_elsewhere_are_judged_as_well(groups, policy, named):
    with pytest.raises(exception.InvalidExtraSpec, match=named):
        query(FlavorRequest(groups, policy))


NODE = "00000000-0000-4000-8000-000000000000"
CARD = "11111111-1111-4111-8111-111111111111"
OTHER = "22222222-2222-4222-8222-222222222222"
GPU = "CUSTOM_ACCELERATOR_GPU"

providers = st.uuids().map(str)
resources = st.dictionaries(
    st.text("ABC_19", min_size=1, max_size=8), st.integers(1, 9), min_size=1
)
json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | providers,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(("uuid", "allocations", "mappings", "resources", CARD))
            | st.text(),
            inner,
        )
    ),
    max_leaves=12,
)


@st.composite
def allocations(draw: st.DrawFn) -> Allocations:
    entries = draw(st.dictionaries(providers, resources, min_size=1, max_size=4))
    some = st.sets(st.sampled_from(sorted(entries)), min_size=1)
    suffix = st.text("aZ09_-", max_size=64)
    mappings = draw(st.none() | st.dictionaries(suffix, some, max_size=3))
    return Allocations(
        tuple((rp, tuple(sorted(of.items()))) for rp, of in sorted(entries.items())),
        None
        if mappings is None
        else tuple((s, tuple(sorted(of))) for s, of in sorted(mappings.items())),
    )


def as_placement_has_it(selection: Allocations) -> dict[str, object]:
    request: dict[str, object] = {
        "allocations": {rp: {"resources": dict(of)} for rp, of in selection.entries}
    }
    if selection.mappings is not None:
        request["mappings"] = {suffix: list(of) for suffix, of in selection.mappings}
    return request


def test_none_stands_for_the_recorded_lease():
    assert parse_selected_rp(None) is None


@pytest.mark.parametrize("form", [CARD.upper(), uuid.UUID(CARD).hex])
def test_one_provider_is_read_in_its_canonical_form(form):
    assert parse_selected_rp({"uuid": form, "name": "x"}) == SingleProvider(CARD)


@given(allocations())
def test_every_allocation_request_is_read_back(selection):
    assert parse_selected_rp(as_placement_has_it(selection)) == selection


def test_what_else_placement_says_of_an_allocation_is_ignored():
    given_ = {
        "allocations": {CARD: {"resources": {GPU: 1}, "generation": 3}},
        "project_id": "p",
    }
    assert parse_selected_rp(given_) == Allocations(((CARD, ((GPU, 1),)),))


def allocation(provider: object = CARD, resources: object = None) -> dict[str, object]:
    return {"allocations": {provider: {"resources": resources or {GPU: 1}}}}


@pytest.mark.parametrize(
    ("malformed", "named"),
    [
        ("text", "text"),
        ([CARD], CARD),
        (1, "1"),
        ({}, "{}"),
        ({"rp": CARD}, "'rp'"),
        ({"uuid": CARD, **allocation()}, "either"),
        ({"uuid": None}, "None"),
        ({"uuid": "card"}, "card"),
        ({"uuid": uuid.UUID(CARD)}, "UUID("),
        ({"mappings": {"1": [CARD]}}, "allocations"),
        ({"allocations": None}, "None"),
        ({"allocations": [CARD]}, CARD),
        ({"allocations": {CARD: None}}, CARD),
        ({"allocations": {CARD: {}}}, CARD),
        ({"allocations": {CARD: {"resources": {}}}}, "empty"),
        (allocation("card"), "card"),
        (allocation(1), "1"),
        (allocation(resources={1: 1}), "1"),
        (allocation(resources={"gpu": 1}), "gpu"),
        (allocation(resources={GPU: 0}), "0"),
        (allocation(resources={GPU: True}), "True"),
        (allocation(resources={GPU: "1"}), "'1'"),
        (allocation(resources={GPU: 2**31}), str(2**31)),
        (allocation(resources={GPU: 10**5000}), "bits"),
        (
            {
                "allocations": {
                    spelling: {"resources": {GPU: 1}}
                    for spelling in (CARD, uuid.UUID(CARD).hex)
                }
            },
            "twice",
        ),
        (allocation() | {"mappings": None}, "None"),
        (allocation() | {"mappings": {1: [CARD]}}, "1"),
        (allocation() | {"mappings": {"1.2": [CARD]}}, "1.2"),
        (allocation() | {"mappings": {"a" * 65: [CARD]}}, "suffix"),
        (allocation() | {"mappings": {"1": CARD}}, CARD),
        (allocation() | {"mappings": {"1": []}}, "[]"),
        (allocation() | {"mappings": {"1": ["card"]}}, "card"),
        (allocation() | {"mappings": {"1": [CARD, CARD]}}, "twice"),
        (allocation() | {"mappings": {"1": [OTHER]}}, OTHER),
    ],
)
def test_a_malformed_value_is_named(malformed, named):
    with pytest.raises(exception.InvalidAllocation) as caught:
        parse_selected_rp(malformed)
    assert named in str(caught.value)


@given(json_like)
def test_any_input_is_a_selection_or_an_invalid_selected_provider(value):
    try:
        selection = parse_selected_rp(value)
    except exception.InvalidAllocation:
        return
    if isinstance(selection, Allocations):
        assert parse_selected_rp(as_placement_has_it(selection)) == selection
    else:
        assert selection is None or selection == SingleProvider(
            str(uuid.UUID(selection.uuid))
        )
