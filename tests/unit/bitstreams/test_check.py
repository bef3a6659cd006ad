# SPDX-License-Identifier: Apache-2.0

"""A file's header is compared with its image's properties and with the region."""

from __future__ import annotations

import dataclasses

import pytest

from os_acc.bitstreams import formats
from os_acc.exception import ImageReason, RegionReason
from os_acc.objects.bitstream import Header, ImageFormat
from tests.expected_errors import raises
from tests.unit.bitstreams.image_examples import (
    FUNCTION_ID,
    OTHER_FUNCTION_ID,
    OTHER_REGION_ID,
    REGION,
    REGION_ID,
    image,
)

GBS = Header(ImageFormat.GBS, 400, 4096, REGION_ID, (FUNCTION_ID,))
XCLBIN = Header(ImageFormat.XCLBIN, 0, 4097, REGION_ID)
RAW = Header(ImageFormat.RAW, 0, 4096)


@pytest.mark.parametrize("header", [GBS, XCLBIN])
@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"accel:function_id": FUNCTION_ID},
        {"function_uuid": FUNCTION_ID.replace("-", "").upper()},
        {"region_uuid": REGION_ID.upper(), "function_name": "Compression"},
    ],
)
def test_what_the_file_and_its_properties_say_alike_is_good(
    header: Header, properties: dict[str, str]
) -> None:
    """cyborg.md 5.1 item 3: an image need not state its function."""
    formats.check(header, image(properties=properties), REGION)


@pytest.mark.parametrize("header", [GBS, XCLBIN])
@pytest.mark.parametrize("properties", [{}, {"region_uuid": OTHER_REGION_ID}])
def test_a_file_for_other_regions_does_not_fit(
    header: Header, properties: dict[str, str]
) -> None:
    other = dataclasses.replace(header, interface_id=OTHER_REGION_ID)
    with raises(ImageReason.MISMATCH) as caught:
        formats.check(other, image(properties=properties), REGION)
    assert OTHER_REGION_ID in str(caught.value)
    assert REGION_ID in str(caught.value)


@pytest.mark.parametrize(
    "properties",
    [
        {"region_uuid": OTHER_REGION_ID},
        {"accel:region_uuid": OTHER_REGION_ID, "region_uuid": REGION_ID},
        {"region_uuid": "the big one"},
        {"region_uuid": ""},
        {"accel:function_id": OTHER_FUNCTION_ID},
        {"accel:function_id": FUNCTION_ID, "function_uuid": OTHER_FUNCTION_ID},
        {"function_uuid": "gzip-3", "accel:function_id": OTHER_FUNCTION_ID},
    ],
)
def test_a_file_is_what_its_properties_say_or_it_is_not_programmed(
    properties: dict[str, str],
) -> None:
    with raises(ImageReason.INVALID, match="its properties state"):
        formats.check(GBS, image(properties=properties), REGION)


@pytest.mark.parametrize("header", [GBS, XCLBIN])
@pytest.mark.parametrize(
    "properties",
    [
        {"accel:function_id": "matmul"},
        {"accel:function_id": FUNCTION_ID, "function_uuid": "gzip-3"},
    ],
)
def test_a_function_may_be_called_by_a_string(
    header: Header, properties: dict[str, str]
) -> None:
    """Specification: a function is "usually represented as a string or UUID"."""
    formats.check(header, image(properties=properties), REGION)


def test_of_several_functions_the_properties_may_name_some() -> None:
    both = dataclasses.replace(GBS, function_ids=(FUNCTION_ID, OTHER_FUNCTION_ID))
    formats.check(both, image(), REGION)


@pytest.mark.parametrize(
    "header", [RAW, dataclasses.replace(XCLBIN, interface_id=None)]
)
def test_where_the_file_does_not_say_what_it_is_for_its_properties_have_to(
    header: Header,
) -> None:
    formats.check(header, image(properties={"region_uuid": REGION_ID}), REGION)
    for properties in ({}, {"region_uuid": OTHER_REGION_ID}, {"region_uuid": ""}):
        with raises(ImageReason.MISMATCH, match="built for"):
            formats.check(header, image(properties=properties), REGION)


def test_a_region_that_says_nothing_takes_nothing() -> None:
    region = dataclasses.replace(REGION, interface_id=None)
    with raises(RegionReason.NOT_PROGRAMMABLE):
        formats.check(GBS, image(), region)


@pytest.mark.parametrize("header", [GBS, RAW])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 4095, 4098, 2**32, 2**40])
def test_the_hardware_gets_whole_words_of_what_is_in_the_file(
    header: Header, size: int
) -> None:
    made = image(properties={"region_uuid": REGION_ID})
    with raises(ImageReason.INVALID, match="payload"):
        formats.check(dataclasses.replace(header, payload_size=size), made, REGION)


@pytest.mark.parametrize("size", [4, 4096, 2**32 - 4])
def test_any_number_of_words_that_the_kernel_takes_is_good(size: int) -> None:
    formats.check(dataclasses.replace(GBS, payload_size=size), image(), REGION)
