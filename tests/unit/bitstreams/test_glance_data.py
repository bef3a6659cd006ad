# SPDX-License-Identifier: Apache-2.0

"""The data of images are read from Glance, whole or from an offset."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.bitstreams.glance import Glance
from os_acc.bitstreams.source import download
from tests.expected_errors import raises
from tests.unit.bitstreams.glance_double import DATA, Double, received
from tests.unit.keystone_double import soon


def test_data_come_in_pieces_of_a_mebibyte_at_most(
    glance: Double, source: Glance
) -> None:
    image = source.image(glance.add(DATA), soon())
    with source.data(image, 0, soon()) as data:
        pieces = list(data)
    assert b"".join(pieces) == DATA
    assert max(map(len, pieces)) <= 2**20


def test_data_begin_where_they_are_asked_to(glance: Double, source: Glance) -> None:
    image = source.image(glance.add(DATA), soon())
    assert received(source, image, 1000) == (1000, DATA[1000:])


def test_a_server_that_cannot_begin_there_begins_at_the_start(
    glance: Double, source: Glance
) -> None:
    glance.ranges = False
    image = source.image(glance.add(DATA), soon())
    assert received(source, image, 1000) == (0, DATA)


@pytest.mark.parametrize(
    "lie",
    [
        "",
        "bytes 0-3145727/3145728",
        "bytes 1000-2000/3145728",
        "bytes 1000-3145726/3145727",
        "bytes */3145728",
    ],
)
def test_an_answer_from_elsewhere_is_not_taken(
    glance: Double, source: Glance, lie: str
) -> None:
    glance.lie = lie or " "
    image = source.image(glance.add(DATA), soon())
    assert received(source, image, 1000) == (0, DATA)


def test_what_is_beyond_the_end_begins_at_the_start(
    glance: Double, source: Glance
) -> None:
    image = source.image(glance.add(DATA), soon())
    assert received(source, image, len(DATA)) == (0, DATA)


def test_a_dropped_connection_is_told_and_gone_on_from(
    glance: Double, source: Glance
) -> None:
    image = source.image(glance.add(DATA), soon())
    glance.drop_after = 2**20 + 5
    arrived = b""
    error = None
    with source.data(image, 0, soon()) as data:
        try:
            for piece in data:
                arrived += piece
        except exception.ServiceUnavailable as raised:
            error = raised
    assert error is not None
    assert error.retryable
    assert arrived
    assert DATA.startswith(arrived)
    assert received(source, image, len(arrived)) == (len(arrived), DATA[len(arrived) :])


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("ranges", [True, False])
def test_a_store_that_has_lost_the_end_is_told_early(
    glance: Double, source: Glance, tmp_path: Path, ranges: bool
) -> None:
    glance.ranges, glance.stored = ranges, 2**20 + 7
    value = hashlib.sha512(DATA).hexdigest()
    image_id = glance.add(DATA, os_hash_algo="sha512", os_hash_value=value)
    image = source.image(image_id, soon())
    # urllib3 before 2.0 also passes on less than a whole piece.
    message = f"sends ({2**20}|{2**20 + 7}) of [0-9]+ bytes"
    with (
        open(tmp_path / "arriving", "w+b", buffering=0) as file,
        raises(exception.ImageReason.INVALID, match=message),
    ):
        download(source, image, file.fileno(), 2**30, soon())
    assert glance.count(f"GET /v2/images/{image_id}/file") == 4


def test_an_image_without_data(glance: Double, source: Glance) -> None:
    image = source.image(glance.add(None), soon())
    with pytest.raises(exception.ImageNotFound, match="no data"):
        received(source, image)


def test_an_image_that_was_deleted_meanwhile(glance: Double, source: Glance) -> None:
    image = source.image(glance.add(DATA), soon())
    del glance.images[image.id]
    with pytest.raises(exception.ImageNotFound, match="has been deleted"):
        received(source, image)


def test_a_deactivated_image_gives_no_data(glance: Double, source: Glance) -> None:
    image = source.image(glance.add(DATA, status="deactivated"), soon())
    with pytest.raises(exception.ImageNotFound, match="deactivated"):
        received(source, image)


def test_encoded_data_are_not_decoded(glance: Double, source: Glance) -> None:
    # A mebibyte of encoded data could become a gibibyte.
    glance.encoding = "gzip"
    image = source.image(glance.add(DATA), soon())
    with raises(exception.ServiceType.IMAGE, match="gzip"):
        received(source, image)
