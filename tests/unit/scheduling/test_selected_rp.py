# SPDX-License-Identifier: Apache-2.0

"""``selected_rp`` has four forms; any other value is refused by name."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from os_acc import exception
from os_acc.objects.request_group import Allocations, SingleProvider
from os_acc.scheduling import selected_rp

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


def test_none_stands_for_the_recorded_lease() -> None:
    assert selected_rp.parse(None) is None


@pytest.mark.parametrize("form", [CARD.upper(), uuid.UUID(CARD).hex])
def test_one_provider_is_read_in_its_canonical_form(form: str) -> None:
    assert selected_rp.parse({"uuid": form, "name": "x"}) == SingleProvider(CARD)


@given(allocations())
def test_every_allocation_request_is_read_back(selection: Allocations) -> None:
    assert selected_rp.parse(as_placement_has_it(selection)) == selection


def test_what_else_placement_says_of_an_allocation_is_ignored() -> None:
    given_ = {
        "allocations": {CARD: {"resources": {GPU: 1}, "generation": 3}},
        "project_id": "p",
    }
    assert selected_rp.parse(given_) == Allocations(((CARD, ((GPU, 1),)),))


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
def test_a_malformed_value_is_named(malformed: object, named: str) -> None:
    with pytest.raises(exception.InvalidAllocation) as caught:
        selected_rp.parse(malformed)
    assert named in str(caught.value)


@given(json_like)
def test_any_input_is_a_selection_or_an_invalid_selected_provider(
    value: object,
) -> None:
    try:
        selection = selected_rp.parse(value)
    except exception.InvalidAllocation:
        return
    if isinstance(selection, Allocations):
        assert selected_rp.parse(as_placement_has_it(selection)) == selection
    else:
        assert selection is None or selection == SingleProvider(
            str(uuid.UUID(selection.uuid))
        )
