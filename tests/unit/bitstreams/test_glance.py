# SPDX-License-Identifier: Apache-2.0

"""Images, their properties and their data are read from Glance."""

import hashlib

import pytest

from os_acc import exception
from os_acc.bitstreams.download import download
from os_acc.bitstreams.glance import Glance
from os_acc.objects.bitstream import Image
from tests.expected_errors import raises
from tests.unit.bitstreams.glance_double import DATA, received
from tests.unit.keystone_double import soon

UNKNOWN = "00000000-0000-0000-0000-000000000000"


def found(source: Glance, **filters: str) -> list[str]:
    return [image.id for image in source.images(filters, soon())]


# -- a single image --------------------------------------------------------------


def test_an_image_has_what_glance_says_of_it(glance, source):
    image_id = glance.add(
        b"1234",
        name="nlb",
        os_hash_algo="sha512",
        os_hash_value="AB" * 64,
        visibility="public",
        tags=["FPGA"],
        **{"accel:function_id": "f"},
    )
    assert source.image(image_id, soon()) == Image(
        id=image_id,
        name="nlb",
        status="active",
        visibility="public",
        hidden=False,
        owner="service",
        size=4,
        disk_format="raw",
        container_format="bare",
        hash_algo="sha512",
        hash_value="ab" * 64,
        tags=frozenset({"FPGA"}),
        properties={"accel:function_id": "f"},
    )


def test_what_glance_does_not_know_is_not_made_up(glance, source):
    nothing = {"name": None, "owner": None, "disk_format": None}
    image = source.image(glance.add(None, **nothing), soon())
    assert (image.name, image.owner, image.disk_format) == ("", "", "")
    assert (image.size, image.hash_algo, image.hash_value) == (None, "", "")


def test_no_image_of_that_id(glance, source):
    why = f"has no image {UNKNOWN}: No image found with ID {UNKNOWN} \\(HTTP 404\\)"
    with pytest.raises(exception.ImageNotFound, match=why):
        source.image(UNKNOWN, soon())


@pytest.mark.parametrize("text", ["", "nlb", "../../v3/users", f"{UNKNOWN}?x=y"])
def test_what_is_no_id_never_becomes_an_address(glance, source, text):
    with pytest.raises(exception.ImageNotFound, match="is not an image id"):
        source.image(text, soon())
    assert glance.asked == []


# -- lists of images -------------------------------------------------------------


def test_every_page_is_listed(glance, source):
    glance.page = 3
    ids = [glance.add(name="nlb") for _ in range(11)]
    glance.add(name="another")
    assert found(source, name="nlb") == ids
    assert glance.count("GET /v2/images?") == 4


def test_images_are_found_by_owner_and_visibility(glance, source):
    """A search need not read the images of tenants."""
    ours = glance.add(owner="fpga-team", visibility="shared")
    public = glance.add(owner="somebody", visibility="public")
    glance.add(owner="FPGA-team", visibility="private")
    assert found(source, owner="fpga-team") == [ours]
    assert found(source, visibility="public") == [public]
    assert found(source, owner="fpga-team", visibility="public") == []


def test_what_an_owner_has_is_found_whatever_its_visibility(glance, source):
    """Glance itself lists community images only on request."""
    wanted = [
        glance.add(owner="fpga-team", name="nlb", visibility=visibility)
        for visibility in ("public", "community", "shared")
    ]
    glance.add(owner="tenant", name="nlb", visibility="community")
    assert found(source, name="nlb", owner="fpga-team") == wanted
    assert found(source, name="nlb") == [wanted[0], wanted[2]]


def test_images_are_found_by_properties_and_tags_together(glance, source):
    wanted = glance.add(tags=["FPGA", "x"], **{"accel:function_id": "f"})
    glance.add(tags=["FPGA"], **{"accel:function_id": "g"})
    glance.add(tags=[], **{"accel:function_id": "f"})
    assert found(source, tag="FPGA", **{"accel:function_id": "f"}) == [wanted]


@pytest.mark.parametrize(
    "name", ["nlb", "nlb:v2", "in:a,b", 'in:"x', "a:\\b", "a&limit=1"]
)
def test_a_name_is_compared_as_it_is_and_never_read_as_an_operator(
    glance, source, name
):
    glance.add(name="a")
    glance.add(name=name.upper())
    wanted = glance.add(name=name)
    assert found(source, name=name) == [wanted]


def test_a_hidden_image_is_found_by_its_id_alone(glance, source):
    image_id = glance.add(name="nlb", os_hidden=True)
    assert found(source, name="nlb") == []
    assert source.image(image_id, soon()).hidden


def test_an_image_that_goes_while_pages_are_listed(glance, source):
    for _ in range(201):
        glance.add()
    listing = source.images({}, soon())
    for _ in range(199):
        next(listing)
    del glance.images[next(listing).id]
    with raises(exception.ServiceType.IMAGE, match="deleted while"):
        list(listing)


# -- the data of an image --------------------------------------------------------


def test_data_come_in_pieces_of_a_mebibyte_at_most(glance, source):
    image = source.image(glance.add(DATA), soon())
    with source.data(image, 0, soon()) as data:
        pieces = list(data)
    assert b"".join(pieces) == DATA
    assert max(map(len, pieces)) <= 2**20


@pytest.mark.parametrize(
    ("behaviour", "asked", "begin"),
    [
        ({}, 1000, 1000),
        ({}, len(DATA), 0),
        ({"ranges": False}, 1000, 0),
        ({"lie": " "}, 1000, 0),
        ({"lie": "bytes 0-3145727/3145728"}, 1000, 0),
        ({"lie": "bytes 1000-2000/3145728"}, 1000, 0),
        ({"lie": "bytes 1000-3145726/3145727"}, 1000, 0),
        ({"lie": "bytes */3145728"}, 1000, 0),
    ],
    ids=str,
)
def test_data_begin_where_they_are_asked_to_or_at_the_start(
    glance, source, behaviour, asked, begin
):
    for name, value in behaviour.items():
        setattr(glance, name, value)
    image = source.image(glance.add(DATA), soon())
    assert received(source, image, asked) == (begin, DATA[begin:])


def test_a_dropped_connection_is_told_and_gone_on_from(glance, source):
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
def test_a_store_that_has_lost_the_end_is_told_early(glance, source, tmp_path, ranges):
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


@pytest.mark.parametrize(
    ("data", "status", "why"),
    [(None, "active", "no data"), (DATA, "deactivated", "deactivated")],
)
def test_an_image_that_gives_no_data(glance, source, data, status, why):
    image = source.image(glance.add(data, status=status), soon())
    with pytest.raises(exception.ImageNotFound, match=why):
        received(source, image)


def test_an_image_that_was_deleted_meanwhile(glance, source):
    image = source.image(glance.add(DATA), soon())
    del glance.images[image.id]
    with pytest.raises(exception.ImageNotFound, match="has been deleted"):
        received(source, image)


def test_encoded_data_are_not_decoded(glance, source):
    # A mebibyte of encoded data could become a gibibyte.
    glance.encoding = "gzip"
    image = source.image(glance.add(DATA), soon())
    with raises(exception.ServiceType.IMAGE, match="gzip"):
        received(source, image)
