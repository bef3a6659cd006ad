# SPDX-License-Identifier: Apache-2.0

"""A bitstream request selects one image for a region."""

import dataclasses
import uuid

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from os_acc import exception
from os_acc.bitstreams import image_selection, properties
from os_acc.objects.bitstream import BitstreamRequest, Image
from os_acc.objects.pci import PciIdentity
from tests.expected_errors import Expected, kind_of, raises
from tests.unit.bitstreams.image_examples import (
    FUNCTION_ID,
    OPERATOR,
    OTHER_FUNCTION_ID,
    OTHER_REGION_ID,
    REGION,
    REGION_ID,
    RULES,
    TENANT,
    image,
)

# Other tests may run at the same time.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

BY_ID = BitstreamRequest(bitstream_id=image(1).id)
BY_NAME = BitstreamRequest(bitstream_name="image-1")
BY_FUNCTION = BitstreamRequest(function_id=FUNCTION_ID)
BY_FUNCTION_NAME = BitstreamRequest(function_name="Compression")
SPELLINGS = [
    FUNCTION_ID,
    FUNCTION_ID.upper(),
    FUNCTION_ID.replace("-", ""),
    FUNCTION_ID.replace("-", "").upper(),
]


def chosen(requested: BitstreamRequest, *images: Image) -> Image:
    return image_selection.choose(requested, REGION, images, RULES)


def none(
    kind: Expected, requested: BitstreamRequest, *images: Image
) -> exception.OsAccError:
    with raises(kind) as caught:
        chosen(requested, *images)
    assert kind_of(caught.value) is kind
    assert len(str(caught.value)) < 5000
    return caught.value


# -- requests ----------------------------------------------------------------


@pytest.mark.parametrize("requested", [BY_ID, BY_NAME, BY_FUNCTION])
def test_the_only_image_that_is_asked_for_is_chosen(requested):
    others = (image(2, {}), image(3, {"accel:function_id": OTHER_FUNCTION_ID}))
    assert chosen(requested, *others, image(1)) == image(1)


@pytest.mark.parametrize(
    "key",
    ["accel:function_id", "function_id", "accel:function_uuid", "function_uuid"],
)
@pytest.mark.parametrize("written", SPELLINGS)
@pytest.mark.parametrize("asked", SPELLINGS[::3])
def test_a_function_is_the_same_however_its_uuid_is_written(key, written, asked):
    """cyborg.md 5.1 item 4: a function id may have dashes."""
    made = image(1, {key: written})
    assert chosen(BitstreamRequest(function_id=asked), made) == made


def test_an_id_that_is_no_uuid_is_compared_as_it_is():
    made = image(1, {"accel:function_id": "gzip-3"})
    assert chosen(BitstreamRequest(function_id="gzip-3"), made) == made
    none(exception.ImageNotFound, BitstreamRequest(function_id="GZIP-3"), made)


@pytest.mark.parametrize("key", ["accel:function_name", "function_name"])
def test_names_are_the_same_only_exactly(key):
    made = image(1, {key: "Compression"})
    assert chosen(BY_FUNCTION_NAME, made) == made
    for other in ("compression", "Compression ", "Compression2", ""):
        none(exception.ImageNotFound, BY_FUNCTION_NAME, image(1, {key: other}))


@pytest.mark.parametrize("name", ["IMAGE-1", "image-1 ", "image", ""])
def test_the_name_of_an_image_is_the_same_only_exactly(name):
    none(exception.ImageNotFound, BY_NAME, image(1, name=name))


def test_an_image_may_implement_several_functions():
    made = image(
        1, {"accel:function_id": FUNCTION_ID, "function_uuid": OTHER_FUNCTION_ID}
    )
    assert chosen(BY_FUNCTION, made) == made
    assert chosen(BitstreamRequest(function_id=OTHER_FUNCTION_ID), made) == made


def test_who_asks_for_nothing_gets_nothing():
    none(exception.ImageNotFound, BitstreamRequest(), image(1))


def test_an_image_that_a_source_lists_twice_is_one_image():
    assert chosen(BY_FUNCTION, image(1), image(1)) == image(1)


@pytest.mark.parametrize("requested", [BY_NAME, BY_FUNCTION, BY_FUNCTION_NAME])
def test_what_a_vms_image_needs_is_no_bitstream(requested):
    """A VM's image has the same properties; they state its requirements."""
    given = {
        "accel:function_id": FUNCTION_ID,
        "accel:function_name": "Compression",
    }
    vms = image(1, given, tags=frozenset())
    error = none(exception.ImageNotFound, requested, vms)
    assert "lacks the tag FPGA" in str(error)
    bitstream = image(2, given, name="image-1")
    assert chosen(requested, vms, bitstream) == bitstream


def test_an_image_that_is_named_by_its_id_needs_no_tag_and_no_properties():
    """cyborg.md 5.1 item 3: the image need not state which function it implements."""
    made = image(1, {}, tags=frozenset())
    assert chosen(BY_ID, made) == made


@pytest.mark.parametrize(
    ("requested", "asked"),
    [
        (BY_NAME, {"name": "image-1"}),
        (BY_FUNCTION, {"tag": "FPGA"}),
        (BY_FUNCTION_NAME, {"tag": "FPGA"}),
    ],
)
def test_a_source_is_asked_for_what_it_can_compare(requested, asked):
    rules = dataclasses.replace(RULES, projects=frozenset(), public=True)
    asked["visibility"] = "public"
    assert list(image_selection.searches(requested, rules)) == [asked]


def test_what_tenants_upload_is_not_even_looked_at():
    """cyborg.md 5.1 item 8: searches skip tenants' images, however many exist."""
    rules = dataclasses.replace(RULES, projects=frozenset({"b", "a"}))
    assert list(image_selection.searches(BY_NAME, rules)) == [
        {"name": "image-1", "owner": "a"},
        {"name": "image-1", "owner": "b"},
        {"name": "image-1", "visibility": "public"},
    ]
    rules = dataclasses.replace(rules, projects=frozenset({"a"}), public=False)
    assert list(image_selection.searches(BY_FUNCTION, rules)) == [
        {"tag": "FPGA", "owner": "a"}
    ]


# -- no image, or several ----------------------------------------------------


@pytest.mark.parametrize("requested", [BY_ID, BY_NAME, BY_FUNCTION, BY_FUNCTION_NAME])
def test_no_image_is_an_error_that_says_what_was_looked_for(requested):
    """cyborg.md 5.1 item 3: no image is an error of its own, not a dead end."""
    assert str(requested) in str(none(exception.ImageNotFound, requested, image(9, {})))
    assert str(requested) in str(none(exception.ImageNotFound, requested))


def test_two_images_are_an_error_that_names_both():
    """cyborg.md 5.1 item 3: two images are an error of their own."""
    error = none(
        exception.ImageReason.AMBIGUOUS, BY_FUNCTION, image(1), image(2), image(3, {})
    )
    assert image(1).id in str(error)
    assert image(2).id in str(error)
    assert image(3).id not in str(error)


def test_of_many_images_an_error_names_some():
    error = none(
        exception.ImageReason.AMBIGUOUS, BY_FUNCTION, *map(image, range(1, 501))
    )
    assert "500 images" in str(error)
    assert "492 more" in str(error)


def test_what_an_uploader_has_chosen_is_shown_as_it_is_written():
    name = "x\n2026-01-01 CRITICAL" + "y" * 300
    error = none(
        exception.ImageReason.AMBIGUOUS, BY_FUNCTION, image(1, name=name), image(2)
    )
    assert "\n" not in str(error)
    assert "y" * 100 not in str(error)
    given = {"function_uuid": FUNCTION_ID, "vendor": name, "region_uuid": name}
    error = none(exception.ImageReason.MISMATCH, BY_FUNCTION, image(1, given))
    assert "\n" not in str(error)


# -- for another region, vendor or board -------------------------------------


@pytest.mark.parametrize("key", ["accel:region_uuid", "region_uuid"])
@pytest.mark.parametrize("spell", [str, str.upper, lambda text: text.replace("-", "")])
def test_a_region_is_the_same_however_its_uuid_is_written(key, spell):
    made = image(1, {"function_uuid": FUNCTION_ID, key: spell(REGION_ID)})
    other = image(2, {"function_uuid": FUNCTION_ID, key: spell(OTHER_REGION_ID)})
    assert chosen(BY_FUNCTION, other, made) == made
    error = none(exception.ImageReason.MISMATCH, BY_FUNCTION, other)
    assert OTHER_REGION_ID in str(error)
    assert REGION_ID in str(error)


@pytest.mark.parametrize("requested", [BY_ID, BY_NAME, BY_FUNCTION])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("region_uuid", OTHER_REGION_ID),
        ("region_uuid", ""),
        ("accel:region_uuid", "the big one"),
        ("vendor", "xilinx"),
        ("vendor", "10ee"),
        ("accel:vendor", "nobody"),
        ("board", "PAC_D5005"),
        ("board", "8086:0b2b"),
        ("accel:board", "KU115"),
    ],
)
def test_an_image_for_something_else_is_never_chosen(requested, key, value):
    given = {"accel:function_id": FUNCTION_ID, key: value}
    error = none(exception.ImageReason.MISMATCH, requested, image(1, given))
    assert value in str(error)
    assert image(1).id in str(error)


def test_regions_that_contradict_each_other_are_no_region():
    given = {
        "accel:function_id": FUNCTION_ID,
        "accel:region_uuid": REGION_ID,
        "region_uuid": OTHER_REGION_ID,
    }
    none(exception.ImageReason.MISMATCH, BY_FUNCTION, image(1, given))


CARD = PciIdentity(0x8086, 0xBCCE, 0x8086, 0x1771, 0)


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        (
            properties.is_vendor,
            ("intel", "INTEL", "8086", "0x8086"),
            ("", "xilinx", "10ee", "8086 ", "80860", "0x08086"),
        ),
        # Its own ids, or those of its subsystem.
        (
            properties.is_board,
            ("bcce", "0xBCCE", "8086:bcce", "0x8086:0xbcce", "1771", "8086:1771"),
            ("", "8086", "10ee:bcce", "bcce:1771", "bcc", "bcce "),
        ),
    ],
    ids=["vendor", "board"],
)
def test_a_card_is_known_by_names_and_ids(check, right, wrong):
    assert [text for text in (*right, *wrong) if check(text, CARD)] == [*right]


def test_a_board_is_known_by_the_name_that_cyborg_has_for_it():
    for text in ("PAC_ARRIA10", "pac-arria10", "09c4", "8086:09c4"):
        assert properties.is_board(text, REGION.identity)


# -- images that are not allowed ---------------------------------------------

OF_OTHERS = {
    "tenant": {"owner": TENANT, "visibility": "private"},
    "community": {"owner": TENANT, "visibility": "community"},
    "shared": {"owner": TENANT, "visibility": "shared"},
}
UNFIT = {
    "deactivated": {"status": "deactivated"},
    "hidden": {"hidden": True},
    "md5": {"hash_algo": "md5", "hash_value": "0" * 32},
}
NOT_ALLOWED = OF_OTHERS | UNFIT


@pytest.mark.parametrize("fields", NOT_ALLOWED.values(), ids=NOT_ALLOWED)
def test_what_is_not_allowed_is_left_out_before_two_are_too_many(fields):
    """cyborg.md 5.1 item 8: a tenant cannot block, nor replace, a function."""
    others = [image(number, name="image-1", **fields) for number in (2, 3)]
    assert chosen(BY_NAME, others[0], image(1), others[1]) == image(1)


@pytest.mark.parametrize("fields", UNFIT.values(), ids=UNFIT)
@pytest.mark.parametrize("requested", [BY_NAME, BY_FUNCTION])
def test_what_is_not_allowed_is_not_found_and_told_of(requested, fields):
    error = none(exception.ImageNotFound, requested, image(1, **fields))
    assert image(1).id in str(error)
    assert "os_acc_bitstreams" in error.hint


@pytest.mark.parametrize("fields", OF_OTHERS.values(), ids=OF_OTHERS)
def test_an_error_shows_neither_name_nor_owner_of_an_image_of_others(fields):
    """cyborg.md 5.1 item 8: a tenant cannot supply a bitstream."""
    error = none(exception.ImageRefused, BY_ID, image(1, name="secret", **fields))
    assert "neither public nor of an allowed project" in str(error)
    assert "secret" not in str(error)
    assert TENANT not in str(error)


@pytest.mark.parametrize("fields", UNFIT.values(), ids=UNFIT)
def test_an_image_whose_id_was_given_is_refused_with_the_reasons(fields):
    error = none(exception.ImageRefused, BY_ID, image(1, **fields))
    assert image(1).name in str(error)


def test_what_is_not_allowed_is_told_of_where_others_do_not_fit_either():
    other = image(
        1, {"accel:function_id": FUNCTION_ID, "accel:region_uuid": OTHER_REGION_ID}
    )
    error = none(
        exception.ImageReason.MISMATCH,
        BY_FUNCTION,
        other,
        image(2, status="deactivated"),
    )
    assert OTHER_REGION_ID in str(error)
    assert "deactivated" in str(error)


IMAGES = st.builds(
    lambda number, function, region, fields, tags: image(
        number,
        {"accel:function_id": function} | ({"region_uuid": region} if region else {}),
        tags=tags,
        **fields,
    ),
    st.integers(1, 1_000_000),
    st.sampled_from([*SPELLINGS, OTHER_FUNCTION_ID, "x"]),
    st.sampled_from([None, REGION_ID, REGION_ID.upper(), OTHER_REGION_ID]),
    st.sampled_from([{}, *NOT_ALLOWED.values()]),
    st.sampled_from([frozenset({"FPGA"}), frozenset({"FPGA", "x"}), frozenset()]),
)
TENANTS = st.builds(
    lambda made, visibility: dataclasses.replace(
        made,
        id=str(uuid.uuid5(uuid.NAMESPACE_OID, made.id)),
        owner=TENANT,
        visibility=visibility,
    ),
    IMAGES,
    st.sampled_from(["private", "shared", "community"]),
)


def outcome(images: list[Image]) -> object:
    try:
        return chosen(BY_FUNCTION, *images).id
    except exception.ImageUnusable as error:
        return error.reason
    except exception.ImageNotFound as error:
        return type(error)


@patient
@given(st.lists(IMAGES, max_size=5, unique_by=lambda made: made.id))
def test_an_image_is_chosen_if_it_is_the_only_one_that_fits(images):
    fitting = [
        made
        for made in images
        if made.properties["accel:function_id"] in SPELLINGS
        and made.properties.get("region_uuid", REGION_ID).lower() == REGION_ID
        and "FPGA" in made.tags
        and made.owner == OPERATOR
        and made.status == "active"
        and not made.hidden
        and made.hash_algo == "sha512"
    ]
    if len(fitting) == 1:
        assert outcome(images) == fitting[0].id
    elif fitting:
        assert outcome(images) is exception.ImageReason.AMBIGUOUS
    else:
        assert outcome(images) in (
            exception.ImageNotFound,
            exception.ImageReason.MISMATCH,
        )


@patient
@given(
    st.lists(IMAGES, max_size=4, unique_by=lambda made: made.id),
    st.lists(TENANTS, max_size=4),
    st.randoms(use_true_random=False),
)
def test_nothing_that_tenants_upload_changes_what_is_chosen(images, tenants, random):
    """cyborg.md 5.1 item 8: a tenant cannot block, replace or supply a function."""
    together = images + tenants
    random.shuffle(together)
    assert outcome(together) == outcome(images)
