# SPDX-License-Identifier: Apache-2.0

"""Headers of bitstreams are parsed, and compared with their image and region."""

import dataclasses
import io
import json
import struct
import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from os_acc.bitstreams import formats
from os_acc.exception import ImageReason, ImageUnusable, RegionReason
from os_acc.objects.bitstream import Header, ImageFormat
from os_acc.testing import image_directory
from tests.expected_errors import raises
from tests.unit.bitstreams.image_examples import (
    FUNCTION_ID,
    OTHER_FUNCTION_ID,
    OTHER_REGION_ID,
    REGION,
    REGION_ID,
    image,
)

UUIDS = st.uuids().map(str)
# Other tests may run at the same time.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Counted(io.BytesIO):
    """A file that counts the bytes read from it."""

    taken = 0

    def read(self, size: int | None = -1) -> bytes:
        assert size is not None
        assert size >= 0, "reads all that there is"
        found = super().read(size)
        self.taken += len(found)
        return found


def read(content: bytes, size: int | None = None) -> Header:
    return formats.read_header(
        io.BytesIO(content), len(content) if size is None else size
    )


def refused(content: bytes, size: int | None = None) -> str:
    with raises(ImageReason.INVALID) as caught:
        read(content, size)
    assert len(str(caught.value)) < 1000
    return str(caught.value)


def metadata(*keys: str, value: Any = None) -> dict[str, Any]:
    """Return valid metadata, with one value replaced or removed."""
    made = image_directory.gbs_metadata(REGION_ID, FUNCTION_ID)
    within: Any = made
    for key in keys[:-1]:
        within = within[key]
    if keys and value is None:
        del within[keys[-1]]
    elif keys:
        within[keys[-1]] = value
    return made


# -- GBS ---------------------------------------------------------------------


@patient
@given(UUIDS, st.lists(UUIDS, min_size=1, max_size=5, unique=True), st.binary())
def test_what_the_packager_writes_is_read_as_it_was_meant(
    interface_id, function_ids, payload
):
    content = image_directory.gbs_of(
        image_directory.gbs_metadata(interface_id, *function_ids), payload
    )
    header = read(content)
    assert header == Header(
        ImageFormat.GBS,
        payload_offset=len(content) - len(payload),
        payload_size=len(payload),
        interface_id=interface_id,
        function_ids=tuple(function_ids),
    )
    assert content[header.payload_offset :] == payload


@pytest.mark.parametrize(
    "spell",
    [str, str.upper, lambda text: text.replace("-", ""), lambda text: text.title()],
)
def test_a_uuid_is_the_same_however_it_is_written(spell):
    header = read(image_directory.gbs(spell(REGION_ID), spell(FUNCTION_ID)))
    assert header.interface_id == REGION_ID
    assert header.function_ids == (FUNCTION_ID,)


@pytest.mark.parametrize("version", [1, 640, 650])
def test_a_release_in_place_of_the_version_is_version_one(version):
    content = image_directory.gbs_of(metadata("version", value=version))
    assert read(content).interface_id == REGION_ID


def test_metadata_may_lack_what_errant_tools_leave_out():
    made = metadata("platform-name")
    for key in ("power", "clock-frequency-high", "clock-frequency-low", "magic-no"):
        del made["afu-image"][key]
    assert read(image_directory.gbs_of(made)).function_ids == (FUNCTION_ID,)


@pytest.mark.parametrize("padding", [b"\0", b"\0\0\0", b"\n", b" \r\n\t\0"])
def test_metadata_may_be_padded(padding):
    raw = json.dumps(metadata(), indent=4).encode() + padding
    header = read(image_directory.gbs_of(raw))
    assert header.payload_offset == 20 + len(raw)
    assert header.interface_id == REGION_ID


def test_a_function_that_is_named_twice_is_one_function():
    made = image_directory.gbs_metadata(REGION_ID, FUNCTION_ID, FUNCTION_ID.upper())
    assert read(image_directory.gbs_of(made)).function_ids == (FUNCTION_ID,)


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("version",), None),
        (("version",), 2),
        (("version",), True),
        (("version",), 1.0),
        (("version",), "1"),
        (("version",), [1]),
        (("afu-image",), None),
        (("afu-image",), []),
        (("afu-image", "magic-no"), 7),
        (("afu-image", "magic-no"), [7]),
        (("afu-image", "interface-uuid"), None),
        (("afu-image", "interface-uuid"), 5),
        (("afu-image", "interface-uuid"), "interface"),
        (("afu-image", "interface-uuid"), "{" + REGION_ID + "}"),
        (("afu-image", "accelerator-clusters"), None),
        (("afu-image", "accelerator-clusters"), []),
        (("afu-image", "accelerator-clusters"), {}),
        (("afu-image", "accelerator-clusters"), ["afu"]),
        (("afu-image", "accelerator-clusters"), [{}]),
        (("afu-image", "accelerator-clusters"), [{"accelerator-type-uuid": "x"}]),
    ],
)
def test_metadata_that_is_not_of_a_bitstream_is_refused(keys, value):
    assert keys[-1] in refused(
        image_directory.gbs_of(metadata(*keys, value=value))
    ) or ("accelerator" in keys[-1])


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"null",
        b"[]",
        b'"afu-image"',
        b"\xff\xfe",
        json.dumps(metadata()).encode("utf-16"),
        b"\xef\xbb\xbf" + json.dumps(metadata()).encode(),
        json.dumps(metadata()).encode() + b"{}",
        b"[" * 4095,
        b'{"a":' * 800,
        b"9" * 4095,
        b'{"version": NaN}',
        b'{"version": -Infinity}',
        b'{"version": 1e999}',
        b"\0" * 100,
    ],
)
def test_metadata_that_is_no_json_object_is_refused(raw):
    assert "green bitstream" in refused(image_directory.gbs_of(raw))


def test_a_key_that_is_there_twice_is_refused():
    """Readers that take the first or the last one must not differ."""
    raw = json.dumps(metadata()).replace(
        '"interface-uuid"', f'"interface-uuid": "{OTHER_REGION_ID}", "interface-uuid"'
    )
    assert "twice" in refused(image_directory.gbs_of(raw.encode()))


@pytest.mark.parametrize("length", [0, 4096, 2**31, 2**32 - 1])
def test_lengths_that_no_tool_writes_are_refused_unread(length):
    file = Counted(
        image_directory.GBS_GUID + struct.pack("<I", length) + b" " * 10_000,
    )
    with raises(ImageReason.INVALID, match=f"claims {length} bytes"):
        formats.read_header(file, 10_020)
    assert file.taken == 20


def test_a_file_that_ends_in_its_head_is_refused_wherever_that_is():
    whole = image_directory.gbs(REGION_ID, FUNCTION_ID, payload=b"")
    assert read(whole).payload_size == 0
    for end in range(16, len(whole)):
        refused(whole[:end])
        # The source may state another size than the file has.
        refused(whole[:end], size=len(whole))
        refused(whole, size=end)


def test_only_the_head_is_read_of_a_file_of_any_size():
    whole = image_directory.gbs(REGION_ID, FUNCTION_ID, payload=bytes(10_000_000))
    file = Counted(whole)
    header = formats.read_header(file, len(whole))
    assert header.payload_size == 10_000_000
    assert file.taken == header.payload_offset


def test_a_file_is_read_from_its_beginning_wherever_it_stands():
    content = image_directory.gbs(REGION_ID, FUNCTION_ID)
    file = io.BytesIO(content)
    file.seek(100)
    assert formats.read_header(file, len(content)) == read(content)


# -- xclbin ------------------------------------------------------------------


@patient
@given(UUIDS, st.binary(min_size=1))
def test_what_xclbinutil_writes_is_read_as_it_was_meant(interface_id, payload):
    content = image_directory.xclbin(interface_id, payload, more=[(2, b"<project/>")])
    is_zero = uuid.UUID(interface_id).int == 0
    assert read(content) == Header(
        ImageFormat.XCLBIN,
        payload_offset=0,
        payload_size=len(content),
        interface_id=None if is_zero else interface_id,
        function_ids=(image_directory.XCLBIN_ID,),
    )


def test_an_xclbin_need_not_have_a_name_by_which_it_is_found_loaded():
    assert read(image_directory.xclbin(REGION_ID, own_id="")).function_ids == ()


def test_an_xclbin_need_not_say_what_it_is_built_for():
    assert read(image_directory.xclbin(None)).interface_id is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (image_directory.xclbin(REGION_ID) + b"\0", "claims"),
        (image_directory.xclbin(REGION_ID)[:-1], "claims"),
        (image_directory.xclbin(REGION_ID)[:300], "less than its header"),
        (image_directory.xclbin(REGION_ID, major=3), "version 3"),
        (image_directory.xclbin(REGION_ID, mode=4), "mode 4"),
        (image_directory.xclbin(REGION_ID, b""), "no bitstream"),
        (image_directory.xclbin(REGION_ID, more=[(12, b"flash")]), "MCS"),
        (image_directory.xclbin(REGION_ID, more=[(13, b"flash")]), "BMC"),
        (image_directory.xclbin(REGION_ID, more=[(24, b"flash")]), "ASK_FLASH"),
        (image_directory.xclbin(REGION_ID, more=[(2, b"")] * 512), "513 sections"),
    ],
)
def test_an_xclbin_that_no_card_is_to_be_programmed_with_is_refused(content, message):
    """cyborg.md 5.1 item 5: a file that replaces a card's shell is never written."""
    assert message in refused(content)


@pytest.mark.parametrize("count", [0, 10_000, 2**32 - 1])
def test_sections_that_are_not_there_are_not_read(count):
    content = bytearray(image_directory.xclbin(REGION_ID))
    struct.pack_into("<I", content, 448, count)
    file = Counted(bytes(content))
    with raises(ImageReason.INVALID, match=f"{count} sections"):
        formats.read_header(file, len(content))
    assert file.taken < 1000


def test_a_table_of_sections_that_ends_with_the_file_is_refused():
    content = bytearray(image_directory.xclbin(REGION_ID))
    struct.pack_into("<I", content, 448, 500)
    assert "too early" in refused(bytes(content))


@pytest.mark.parametrize("place", [480, 488])
def test_a_section_behind_the_end_of_the_file_is_refused(place):
    content = bytearray(image_directory.xclbin(REGION_ID))
    struct.pack_into("<Q", content, place, 2**64 - 1)
    assert "beyond the end" in refused(bytes(content))


# -- other formats -----------------------------------------------------------


def test_what_has_no_head_is_raw():
    header = read(b"\xff\xff\xff\xff\x6a\xf7" * 100)
    assert header == Header(ImageFormat.RAW, payload_offset=0, payload_size=600)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        struct.pack("<I", image_directory.GBS_MAGIC) + bytes(16) + b"payload",
        b"xclbin0\0" + bytes(1000),
        b"\x7fELF\x02\x01\x01" + bytes(100),
        b"PK\x03\x04" + bytes(100),
        b"\x1f\x8b\x08" + bytes(100),
        b"\xfd7zXZ\0" + bytes(100),
        b"QFI\xfb" + bytes(100),
        b"KDMV" + bytes(100),
    ],
)
def test_what_people_upload_for_a_bitstream_by_mistake_is_told(content):
    assert "the file is" in refused(content)


HEADS = st.one_of(
    st.binary(max_size=600),
    st.binary(max_size=600).map(lambda rest: image_directory.GBS_GUID + rest),
    st.binary(max_size=600).map(lambda rest: image_directory.XCLBIN_MAGIC + rest),
    st.builds(
        lambda raw, rest: image_directory.gbs_of(raw, rest),
        st.text(max_size=300).map(str.encode),
        st.binary(max_size=20),
    ),
    st.builds(
        lambda content, place, byte: content[:place] + byte + content[place + 1 :],
        st.sampled_from(
            [
                image_directory.gbs(REGION_ID, OTHER_FUNCTION_ID, b"1234"),
                image_directory.xclbin(REGION_ID, b"1234"),
            ]
        ),
        st.integers(0, 600),
        st.binary(min_size=1, max_size=1),
    ),
)


@patient
@given(HEADS, st.integers(-1, 2000) | st.integers(0, 2**70))
def test_any_file_is_read_or_refused_and_never_beyond_its_head(content, claimed):
    for size in (len(content), claimed):
        file = Counted(content)
        try:
            header = formats.read_header(file, size)
        except ImageUnusable as error:
            if error.reason is not ImageReason.INVALID:
                raise
        else:
            assert 0 <= header.payload_offset <= size
            assert header.payload_offset + header.payload_size == size
        assert file.taken <= 16 + 456 + 512 * 40


# -- a header, its image and its region ------------------------------------------


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
def test_what_the_file_and_its_properties_say_alike_is_good(header, properties):
    """cyborg.md 5.1 item 3: an image need not state its function."""
    formats.check(header, image(properties=properties), REGION)


@pytest.mark.parametrize("header", [GBS, XCLBIN])
@pytest.mark.parametrize("properties", [{}, {"region_uuid": OTHER_REGION_ID}])
def test_a_file_for_other_regions_does_not_fit(header, properties):
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
def test_a_file_is_what_its_properties_say_or_it_is_not_programmed(properties):
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
def test_a_function_may_be_called_by_a_string(header, properties):
    """Specification: a function is "usually represented as a string or UUID"."""
    formats.check(header, image(properties=properties), REGION)


def test_of_several_functions_the_properties_may_name_some():
    both = dataclasses.replace(GBS, function_ids=(FUNCTION_ID, OTHER_FUNCTION_ID))
    formats.check(both, image(), REGION)


@pytest.mark.parametrize(
    "header", [RAW, dataclasses.replace(XCLBIN, interface_id=None)]
)
def test_where_the_file_does_not_say_what_it_is_for_its_properties_have_to(header):
    formats.check(header, image(properties={"region_uuid": REGION_ID}), REGION)
    for properties in ({}, {"region_uuid": OTHER_REGION_ID}, {"region_uuid": ""}):
        with raises(ImageReason.MISMATCH, match="built for"):
            formats.check(header, image(properties=properties), REGION)


def test_a_region_that_says_nothing_takes_nothing():
    region = dataclasses.replace(REGION, interface_id=None)
    with raises(RegionReason.NOT_PROGRAMMABLE):
        formats.check(GBS, image(), region)


@pytest.mark.parametrize("header", [GBS, RAW])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 4095, 4098, 2**32, 2**40])
def test_the_hardware_gets_whole_words_of_what_is_in_the_file(header, size):
    made = image(properties={"region_uuid": REGION_ID})
    with raises(ImageReason.INVALID, match="payload"):
        formats.check(dataclasses.replace(header, payload_size=size), made, REGION)


@pytest.mark.parametrize("size", [4, 4096, 2**32 - 4])
def test_any_number_of_words_that_the_kernel_takes_is_good(size):
    formats.check(dataclasses.replace(GBS, payload_size=size), image(), REGION)
