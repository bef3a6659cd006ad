# SPDX-License-Identifier: Apache-2.0

"""A directory serves as a source of images, also beside foreign or damaged files."""

import contextlib
import hashlib
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from os_acc import exception
from os_acc.bitstreams.directory import Directory
from tests.expected_errors import raises
from tests.unit.bitstreams.cache_images import patiently
from tests.unit.bitstreams.fake_source import id_of

CONTENT = b"what the region is programmed with" * 50_000
HASH = hashlib.sha256(CONTENT).hexdigest()


def put(place: Path, number: int, content: bytes = CONTENT, **fields: Any) -> Path:
    """Add an image, as an operator does; return its file."""
    file = place / f"image{number}.gbs"
    file.write_bytes(content)
    details = {"id": id_of(number), "os_hash_algo": "sha256", "os_hash_value": HASH}
    (place / f"{file.name}.json").write_text(json.dumps(details | fields))
    return file


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Build a directory with one valid image, number 1."""
    put(tmp_path, 1)
    return tmp_path


@pytest.fixture
def source(place: Path) -> Directory:
    return Directory(str(place))


def ids(source: Directory, **filters: str) -> set[str]:
    return {image.id for image in source.images(filters, patiently())}


def read(source: Directory, number: int, offset: int = 0) -> bytes:
    image = source.image(id_of(number), patiently())
    with source.data(image, offset, patiently()) as data:
        assert data.offset == offset
        pieces = list(data)
    assert max(map(len, pieces)) <= 1 << 20
    return b"".join(pieces)


def test_an_image_is_what_is_said_beside_it(place, source):
    put(
        place,
        2,
        name="loopback",
        owner="fpga-team",
        visibility="shared",
        status="deactivated",
        os_hidden=True,
        tags=["FPGA"],
        disk_format="iso",
        container_format="ova",
        vendor="8086",
        **{"accel:function_id": "f1", "checksum": "x", "min_ram": 0, "board": None},
    )
    image = source.image(id_of(2), patiently())
    assert (image.id, image.name, image.owner) == (id_of(2), "loopback", "fpga-team")
    assert (image.status, image.visibility) == ("deactivated", "shared")
    assert image.hidden
    assert (image.disk_format, image.container_format) == ("iso", "ova")
    assert (image.hash_algo, image.hash_value) == ("sha256", HASH)
    assert image.size == len(CONTENT)
    assert image.tags == {"FPGA"}
    assert image.properties == {"vendor": "8086", "accel:function_id": "f1"}


def test_what_is_not_said_is_as_of_a_public_image(source):
    image = source.image(id_of(1), patiently())
    assert (image.name, image.status) == ("image1.gbs", "active")
    assert (image.visibility, image.hidden) == ("public", False)
    assert not image.tags
    assert not image.properties


def test_an_id_is_found_however_it_is_written(source):
    written = id_of(1).replace("-", "").upper()
    assert source.image(written, patiently()).id == id_of(1)


def test_images_are_found_by_name_tag_and_property(place, source):
    put(place, 2, name="loopback", tags=["FPGA", "test"], function_name="lo")
    put(place, 3, name="loopback", tags=["FPGA"])
    assert ids(source) == {id_of(1), id_of(2), id_of(3)}
    assert ids(source, name="loopback") == {id_of(2), id_of(3)}
    assert ids(source, tag="test") == {id_of(2)}
    assert ids(source, name="loopback", function_name="lo") == {id_of(2)}
    assert ids(source, function_name="l") == set()
    assert ids(source, nothing="") == set()


@pytest.mark.parametrize("offset", [0, 1, 1 << 20, len(CONTENT) - 1])
def test_the_file_is_read_from_any_offset(source, offset):
    assert read(source, 1, offset) == CONTENT[offset:]


def test_an_id_that_is_not_there_is_told_with_the_place(place, source):
    with pytest.raises(exception.ImageNotFound, match=f"{place}.*{id_of(9)}"):
        source.image(id_of(9), patiently())


def test_two_files_of_one_id_are_both_named(place, source):
    put(place, 2, id=id_of(1))
    with raises(exception.ImageReason.AMBIGUOUS, match=r"image1\.gbs, image2\.gbs"):
        source.image(id_of(1), patiently())


def test_an_image_that_goes_is_not_found(place, source):
    image = source.image(id_of(1), patiently())
    (place / "image1.gbs").unlink()
    with (
        pytest.raises(exception.ImageNotFound),
        source.data(image, 0, patiently()),
    ):
        pytest.fail("a file that is gone was opened")


def test_a_directory_that_is_missing_is_named(tmp_path):
    source = Directory(str(tmp_path / "missing"))
    with raises(exception.ServiceType.IMAGE, match="missing") as details:
        source.image(id_of(1), patiently())
    assert "directory" in details.value.hint


def test_nothing_is_read_after_the_deadline(source, monkeypatch):
    image = source.image(id_of(1), patiently())
    with raises(exception.ServiceType.IMAGE, match="in time"):
        source.image(id_of(1), time.monotonic())
    with source.data(image, 0, patiently()) as data, monkeypatch.context() as late:
        late.setattr(time, "monotonic", lambda: math.inf)
        with raises(exception.ServiceType.IMAGE, match="in time"):
            list(data)


def test_a_directory_that_everybody_can_write_is_no_source(place, source):
    place.chmod(0o777)
    with pytest.raises(exception.InvalidConfiguration, match="world-writable"):
        ids(source)


def beside(place: Path) -> Path:
    return place / "image2.gbs.json"


UNUSABLE: dict[str, Callable[[Path], object]] = {
    "no JSON": lambda place: beside(place).write_text('{"id": "'),
    "no text": lambda place: beside(place).write_bytes(b"\xff\xfe"),
    "empty": lambda place: beside(place).write_text(""),
    "no object": lambda place: beside(place).write_text("[]"),
    "a number of many digits": lambda place: beside(place).write_text("1" * 9999),
    "deep": lambda place: beside(place).write_text("[" * 200_000),
    "long": lambda place: beside(place).write_text(" " * 300_000),
    "no id": lambda place: put(place, 2, id=None),
    "an id that is none": lambda place: put(place, 2, id="../image1"),
    "an id that is a list": lambda place: put(place, 2, id=["x"]),
    "tags that are text": lambda place: put(place, 2, tags="FPGA"),
    "tags that are numbers": lambda place: put(place, 2, tags=[1]),
    "hidden or not": lambda place: put(place, 2, os_hidden="yes"),
    "a property that is a number": lambda place: put(place, 2, vendor=0x8086),
    "a name that is no text": lambda place: put(place, 2, name="\ud800"),
    "a property whose name is no text": lambda place: put(place, 2, **{"\ud800": ""}),
    "no file": lambda place: (place / "image2.gbs").unlink(),
    "a file for all to write": lambda place: (place / "image2.gbs").chmod(0o666),
    "properties for all to write": lambda place: beside(place).chmod(0o666),
    "a directory": lambda place: instead(place / "image2.gbs", Path.mkdir),
    "a pipe": lambda place: instead(place / "image2.gbs", os.mkfifo),
    "a link": lambda place: instead(
        place / "image2.gbs", lambda path: path.symlink_to(place / "image1.gbs")
    ),
    "properties that are a link": lambda place: instead(
        beside(place), lambda path: path.symlink_to(place / "image1.gbs.json")
    ),
    "properties that are a pipe": lambda place: instead(beside(place), os.mkfifo),
    "properties that are a directory": lambda place: instead(beside(place), Path.mkdir),
}


def instead(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


@pytest.mark.parametrize("what", UNUSABLE)
def test_what_is_unusable_is_told_once_and_harms_no_other(place, source, caplog, what):
    put(place, 2)
    UNUSABLE[what](place)
    assert ids(source) == ids(source) == {id_of(1)}
    assert read(source, 1) == CONTENT
    (record,) = caplog.records
    assert "image2.gbs" in record.getMessage()
    with pytest.raises(exception.ImageNotFound):
        source.image(id_of(2), patiently())


def test_a_file_whose_name_is_no_text_harms_no_other(place, source, caplog):
    name = os.fsencode(place) + b"/\xff.gbs"
    for path in (name, name + b".json"):
        Path(os.fsdecode(path)).write_text(json.dumps({"id": id_of(2)}))
    assert ids(source) == {id_of(1)}
    caplog.records[0].getMessage().encode()


def test_properties_that_are_still_written_are_read_when_they_are_whole(place, source):
    put(place, 2)
    whole = beside(place).read_text()
    beside(place).write_text(whole[:-5])
    assert ids(source) == {id_of(1)}
    beside(place).write_text(whole)
    assert ids(source) == {id_of(1), id_of(2)}


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
json_values = (
    scalars
    | st.lists(scalars, max_size=3)
    | st.dictionaries(st.text(max_size=3), scalars, max_size=3)
)
fields = st.dictionaries(
    st.sampled_from(
        ("id", "name", "tags", "os_hidden", "size", "os_hash_value", "vendor")
    ),
    json_values | st.just(id_of(2)),
    max_size=4,
)


@settings(deadline=None, max_examples=50)
@given(fields)
def test_whatever_the_properties_say_the_others_are_read(tmp_path_factory, fields):
    place = tmp_path_factory.mktemp("images")
    put(place, 1, b"1")
    put(place, 2, b"2", **fields)
    source = Directory(str(place))
    # The fields decide whether it is used as well or has the other's id.
    with contextlib.suppress(exception.ImageUnusable):
        assert source.image(id_of(1), patiently()).size == 1
