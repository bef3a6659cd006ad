# SPDX-License-Identifier: Apache-2.0

"""A bitstream with several functions is found by each of them."""

import pytest

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
    RULES,
    image,
)

BOTH = {
    "accel:function_id": f"{FUNCTION_ID},{OTHER_FUNCTION_ID.upper()}",
    "accel:function_name": "Compression, Encryption",
}


def chosen(requested: BitstreamRequest) -> Image:
    found = [image(2, {}), image(1, BOTH)]
    return image_selection.choose(requested, REGION, found, RULES)


@pytest.mark.parametrize("asked", [FUNCTION_ID, OTHER_FUNCTION_ID])
def test_an_image_with_two_functions_is_found_by_either_id(asked):
    """000: "A bitstream may implement one or more functions." """
    requested = BitstreamRequest(function_id=asked)
    assert chosen(requested) == image(1, BOTH)


@pytest.mark.parametrize("asked", ["Compression", "Encryption"])
def test_an_image_with_two_functions_is_found_by_either_name(asked):
    requested = BitstreamRequest(function_name=asked)
    assert chosen(requested) == image(1, BOTH)


@pytest.mark.parametrize(
    ("requested", "about", "of_file", "expected"),
    [
        ({"function_name": "Encryption"}, {}, (), OTHER_FUNCTION_ID),
        ({"function_id": OTHER_FUNCTION_ID.upper()}, {}, (), OTHER_FUNCTION_ID),
        # The names of an image without ids are in the order of the file.
        (
            {"function_name": "Encryption"},
            {"accel:function_id": None},
            (FUNCTION_ID, OTHER_FUNCTION_ID),
            OTHER_FUNCTION_ID,
        ),
        (
            {"function_id": "b-2"},
            {"accel:function_id": "a-1, b-2"},
            (FUNCTION_ID, OTHER_FUNCTION_ID),
            OTHER_FUNCTION_ID,
        ),
        # One function with several names.
        ({"function_name": "Encryption"}, {"accel:function_id": "x"}, ("f",), "f"),
        # A number of names that differs from that of the ids.
        (
            {"function_name": "Encryption"},
            {"accel:function_name": "Encryption"},
            (),
            None,
        ),
        ({"function_id": "b-2"}, {"accel:function_id": "a-1, b-2"}, (), None),
        # One listed id is not that of each name.
        (
            {"function_name": "Encryption"},
            {"accel:function_id": FUNCTION_ID},
            (FUNCTION_ID, OTHER_FUNCTION_ID),
            None,
        ),
        (
            {"function_name": "Encryption"},
            {"accel:function_id": FUNCTION_ID},
            (),
            None,
        ),
        (
            {"function_name": "Encryption"},
            {"accel:function_id": FUNCTION_ID, "accel:function_name": None},
            (FUNCTION_ID, OTHER_FUNCTION_ID),
            None,
        ),
    ],
)
def test_ids_and_names_of_an_image_are_in_one_order(
    requested, about, of_file, expected
):
    said = {key: value for key, value in (BOTH | about).items() if value}
    bitstream = Bitstream(
        image(1, said), "", 0, Header(ImageFormat.GBS, 0, 0, None, of_file)
    )
    asked = BitstreamRequest(**requested)
    assert image_selection.function_of(asked, bitstream) == expected
