# SPDX-License-Identifier: Apache-2.0

"""Images and their properties are read from Glance."""

from __future__ import annotations

import pytest

from os_acc import exception
from os_acc.bitstreams.glance import Glance
from os_acc.objects.bitstream import Image
from tests.expected_errors import raises
from tests.unit.bitstreams.glance_double import Double
from tests.unit.keystone_double import soon

NOBODY = "00000000-0000-0000-0000-000000000000"


def found(source: Glance, **filters: str) -> list[str]:
    return [image.id for image in source.images(filters, soon())]


# -- a single image --------------------------------------------------------------


def test_an_image_has_what_glance_says_of_it(glance: Double, source: Glance) -> None:
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


def test_what_glance_does_not_know_is_not_made_up(
    glance: Double, source: Glance
) -> None:
    nothing = {"name": None, "owner": None, "disk_format": None}
    image = source.image(glance.add(None, **nothing), soon())
    assert (image.name, image.owner, image.disk_format) == ("", "", "")
    assert (image.size, image.hash_algo, image.hash_value) == (None, "", "")


def test_no_image_of_that_id(glance: Double, source: Glance) -> None:
    why = f"has no image {NOBODY}: No image found with ID {NOBODY} \\(HTTP 404\\)"
    with pytest.raises(exception.ImageNotFound, match=why):
        source.image(NOBODY, soon())


@pytest.mark.parametrize("text", ["", "nlb", "../../v3/users", f"{NOBODY}?x=y"])
def test_what_is_no_id_never_becomes_an_address(
    glance: Double, source: Glance, text: str
) -> None:
    with pytest.raises(exception.ImageNotFound, match="is not an image id"):
        source.image(text, soon())
    assert glance.asked == []


# -- lists of images -------------------------------------------------------------


def test_every_page_is_listed(glance: Double, source: Glance) -> None:
    glance.page = 3
    ids = [glance.add(name="nlb") for _ in range(11)]
    glance.add(name="another")
    assert found(source, name="nlb") == ids
    assert glance.count("GET /v2/images?") == 4


def test_images_are_found_by_owner_and_visibility(
    glance: Double, source: Glance
) -> None:
    """A search need not read the images of tenants."""
    ours = glance.add(owner="fpga-team", visibility="shared")
    public = glance.add(owner="somebody", visibility="public")
    glance.add(owner="FPGA-team", visibility="private")
    assert found(source, owner="fpga-team") == [ours]
    assert found(source, visibility="public") == [public]
    assert found(source, owner="fpga-team", visibility="public") == []


def test_what_an_owner_has_is_found_whatever_its_visibility(
    glance: Double, source: Glance
) -> None:
    """Glance itself lists community images only on request."""
    wanted = [
        glance.add(owner="fpga-team", name="nlb", visibility=visibility)
        for visibility in ("public", "community", "shared")
    ]
    glance.add(owner="tenant", name="nlb", visibility="community")
    assert found(source, name="nlb", owner="fpga-team") == wanted
    assert found(source, name="nlb") == [wanted[0], wanted[2]]


def test_images_are_found_by_properties_and_tags_together(
    glance: Double, source: Glance
) -> None:
    wanted = glance.add(tags=["FPGA", "x"], **{"accel:function_id": "f"})
    glance.add(tags=["FPGA"], **{"accel:function_id": "g"})
    glance.add(tags=[], **{"accel:function_id": "f"})
    assert found(source, tag="FPGA", **{"accel:function_id": "f"}) == [wanted]


def test_a_value_in_other_letters_is_another_value(
    glance: Double, source: Glance
) -> None:
    glance.add(name="NLB")
    wanted = glance.add(name="nlb")
    assert found(source, name="nlb") == [wanted]


@pytest.mark.parametrize("name", ["nlb:v2", "in:a,b", 'in:"x', "a:\\b", "a&limit=1"])
def test_a_name_is_never_read_as_an_operator(
    glance: Double, source: Glance, name: str
) -> None:
    glance.add(name="a")
    wanted = glance.add(name=name)
    assert found(source, name=name) == [wanted]


def test_a_hidden_image_is_found_by_its_id_alone(
    glance: Double, source: Glance
) -> None:
    image_id = glance.add(name="nlb", os_hidden=True)
    assert found(source, name="nlb") == []
    assert source.image(image_id, soon()).hidden


def test_an_image_that_goes_while_pages_are_listed(
    glance: Double, source: Glance
) -> None:
    for _ in range(201):
        glance.add()
    listing = source.images({}, soon())
    for _ in range(199):
        next(listing)
    del glance.images[next(listing).id]
    with raises(exception.ServiceType.IMAGE, match="deleted while"):
        list(listing)
