# SPDX-License-Identifier: Apache-2.0

"""A VM's own image adds to the requests of its flavor, or contradicts them."""

import pytest

from os_acc import exception
from os_acc.bitstreams import image_selection
from os_acc.objects.bitstream import (
    Bitstream,
    BitstreamRequest,
    Header,
    Image,
    ImageFormat,
)
from tests.unit.bitstreams.image_examples import (
    FUNCTION_ID,
    OTHER_FUNCTION_ID,
    REGION,
    REGION_ID,
    RULES,
    image,
)

BY_ID = BitstreamRequest(bitstream_id=image(1).id)
BY_NAME = BitstreamRequest(bitstream_name="image-1")
BY_FUNCTION = BitstreamRequest(function_id=FUNCTION_ID)
BY_FUNCTION_NAME = BitstreamRequest(function_name="Compression")


def vm_image(**properties: str) -> Image:
    named = {f"accel:{name}": value for name, value in properties.items()}
    return image(9, {"os_distro": "debian", "function": "x", **named})


@pytest.mark.parametrize(
    ("properties", "requested"),
    [
        ({}, None),
        ({"function_id": FUNCTION_ID.upper()}, BY_FUNCTION),
    ],
)
def test_the_vms_image_is_asked_where_the_flavor_says_nothing(properties, requested):
    assert image_selection.merged(None, vm_image(**properties)) == requested
    assert image_selection.merged(None, None) is None


@pytest.mark.parametrize(
    ("name", "value", "requested"),
    [
        ("bitstream_id", BY_ID.bitstream_id, BY_ID),
        ("bitstream_name", "image-1", BY_NAME),
        ("function_id", FUNCTION_ID, BY_FUNCTION),
        ("function_id", "matmul", BitstreamRequest(function_id="matmul")),
        ("function_uuid", FUNCTION_ID, BY_FUNCTION),
        ("function_name", "Compression", BY_FUNCTION_NAME),
    ],
)
def test_each_spelling_on_the_guests_image_is_read(name, value, requested):
    """Specification: image properties such as bitstream/function IDs."""
    for properties in (
        {name: value},
        {f"accel:{name}": value},
        {name: value, f"accel:{name}": value},
    ):
        assert image_selection.merged(None, image(9, properties)) == requested


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("accel:function_id", "function_id"),
        ("function_id", "accel:function_uuid"),
        ("accel:bitstream_id", "bitstream_id"),
        ("accel:function_name", "function_name"),
    ],
)
@pytest.mark.parametrize("flavor", [None, BY_FUNCTION])
def test_two_spellings_with_two_values_are_an_error_that_shows_both(
    first, second, flavor
):
    made = image(9, {first: FUNCTION_ID, second: OTHER_FUNCTION_ID})
    with pytest.raises(exception.InvalidExtraSpec) as caught:
        image_selection.merged(flavor, made)
    for part in (first, second, FUNCTION_ID, OTHER_FUNCTION_ID, made.id):
        assert part in str(caught.value)


@pytest.mark.parametrize("requested", [BY_ID, BY_NAME, BY_FUNCTION, BY_FUNCTION_NAME])
def test_the_flavor_wins(requested):
    for made in (
        None,
        vm_image(),
        vm_image(bitstream_id=BY_ID.bitstream_id),
        vm_image(function_id=FUNCTION_ID.replace("-", "").upper()),
        vm_image(function_id=FUNCTION_ID, function_name="Compression"),
    ):
        assert image_selection.merged(requested, made) == requested


@pytest.mark.parametrize(
    ("requested", "properties"),
    [
        (BY_ID, {"bitstream_id": image(2).id}),
        (BY_FUNCTION, {"function_id": OTHER_FUNCTION_ID}),
        (BY_FUNCTION_NAME, {"function_name": "compression"}),
    ],
)
def test_a_contradiction_is_an_error_that_shows_both(requested, properties):
    with pytest.raises(exception.InvalidExtraSpec) as caught:
        image_selection.merged(requested, vm_image(**properties))
    assert str(requested) in str(caught.value)
    assert next(iter(properties.values())) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("function_id", f"{FUNCTION_ID},{OTHER_FUNCTION_ID}"),
        ("function_uuid", f"{FUNCTION_ID}, {OTHER_FUNCTION_ID}"),
        ("function_name", "Compression,Encryption"),
    ],
)
def test_several_functions_in_one_property_are_refused_by_name(name, value):
    with pytest.raises(exception.InvalidExtraSpec) as caught:
        image_selection.merged(None, vm_image(**{name: value}))
    assert f"property accel:{name}" in str(caught.value)
    assert value in str(caught.value)
    assert "request group" in caught.value.hint


def bitstream(properties: dict[str, str], *function_ids: str) -> Bitstream:
    header = Header(ImageFormat.GBS, 400, 4096, REGION_ID, function_ids)
    return Bitstream(image(1, properties), "", 4496, header)


SAYS_IT = bitstream({"accel:function_id": FUNCTION_ID.upper()})
IS_IT = bitstream({}, FUNCTION_ID, "f7df405c-bd7a-cf72-22f1-44b0b93acd19")


@pytest.mark.parametrize("chosen", [SAYS_IT, IS_IT], ids=["says it", "is it"])
@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"bitstream_id": BY_ID.bitstream_id},
        {"function_id": FUNCTION_ID},
        {"function_name": "nothing is said of names"},
    ],
)
def test_what_was_chosen_may_be_what_the_vms_image_asks_for(chosen, properties):
    image_selection.check_agreement(vm_image(**properties), chosen)
    image_selection.check_agreement(None, chosen)


def test_what_says_nothing_may_be_what_the_vms_image_asks_for():
    image_selection.check_agreement(vm_image(function_id=FUNCTION_ID), bitstream({}))


@pytest.mark.parametrize("chosen", [SAYS_IT, IS_IT], ids=["says it", "is it"])
@pytest.mark.parametrize(
    "properties",
    [
        {"bitstream_id": image(2).id},
        {"function_id": OTHER_FUNCTION_ID},
        {"function_id": FUNCTION_ID, "bitstream_id": image(2).id},
    ],
)
def test_what_was_chosen_may_contradict_the_vms_image(chosen, properties):
    """The flavor asks for an image by its id, the VM's image for a function."""
    with pytest.raises(exception.InvalidExtraSpec) as caught:
        image_selection.check_agreement(vm_image(**properties), chosen)
    assert image(1).id in str(caught.value)


def test_the_name_of_what_was_chosen_may_contradict_the_vms_image():
    chosen = bitstream({"accel:function_name": "Compression"})
    image_selection.check_agreement(vm_image(function_name="Compression"), chosen)
    with pytest.raises(exception.InvalidExtraSpec, match="Crypto"):
        image_selection.check_agreement(vm_image(function_name="Crypto"), chosen)


def test_the_image_that_was_chosen_may_have_another_name():
    image_selection.check_agreement(vm_image(bitstream_name="image-1"), SAYS_IT)
    with pytest.raises(exception.InvalidExtraSpec, match="image-2"):
        image_selection.check_agreement(vm_image(bitstream_name="image-2"), SAYS_IT)


def test_what_an_image_asks_for_in_two_ways_is_one_bitstream():
    made = vm_image(function_id=FUNCTION_ID, function_name="Compression")
    requested = image_selection.merged(None, made)
    assert requested == BitstreamRequest(
        function_id=FUNCTION_ID, function_name="Compression"
    )
    both = {"accel:function_id": FUNCTION_ID, "function_name": "Compression"}
    other = {"accel:function_id": FUNCTION_ID, "function_name": "Cipher"}
    found = image(1, both), image(2, other)
    assert image_selection.choose(requested, REGION, found, RULES) == found[0]
    with pytest.raises(exception.ImageNotFound, match="Compression"):
        image_selection.choose(requested, REGION, found[1:], RULES)


def test_the_bitstream_that_an_image_names_has_to_be_all_that_it_asks_for():
    made = vm_image(bitstream_id=BY_ID.bitstream_id, function_id=OTHER_FUNCTION_ID)
    assert image_selection.merged(None, made) == BY_ID
    image_selection.check_agreement(made, bitstream({}, OTHER_FUNCTION_ID))
    with pytest.raises(exception.InvalidExtraSpec, match=OTHER_FUNCTION_ID):
        image_selection.check_agreement(made, IS_IT)


@pytest.mark.parametrize(
    "properties",
    [
        {"bitstream_id": "not-an-id"},
        {"bitstream_id": ""},
        {"function_id": "x" * 1000},
        {"function_name": "a\nb"},
    ],
)
@pytest.mark.parametrize("flavor", [None, BY_FUNCTION])
def test_what_an_image_cannot_ask_for_is_told(properties, flavor):
    with pytest.raises(exception.InvalidExtraSpec) as caught:
        image_selection.merged(flavor, vm_image(**properties))
    assert f"accel:{next(iter(properties))}" in str(caught.value)
    assert image(9).id in str(caught.value)
