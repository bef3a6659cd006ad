# SPDX-License-Identifier: Apache-2.0

"""A search finds the images of allowed projects; others do not disturb it.

The project "partner" is on the allow-list, "tenant" is not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.bitstreams import library, options
from os_acc.bitstreams.library import Library
from os_acc.objects.bitstream import BitstreamRequest
from os_acc.testing import image_directory
from tests.functional.openstack.cloud import Cloud
from tests.unit.bitstreams import image_examples

REGION_ID = "69528db6-eb31-577a-8c36-68f9faa081f6"
REGION = dataclasses.replace(image_examples.REGION, interface_id=REGION_ID)


@pytest.fixture
def images(cloud: Cloud, tmp_path: Path) -> Callable[..., Library]:
    """Return the tested library, as a user of Keystone."""

    def images(user: str = "os_acc", public: bool = True) -> Library:
        conf = cloud.conf(username=user)
        options.register(conf)
        group = options.GROUP.name
        allowed = [cloud.projects[name] for name in ("partner", "service")]
        conf.set_override("allowed_projects", allowed, group=group)
        conf.set_override("allow_public", public, group=group)
        return library.build(conf, str(tmp_path))

    return images


@pytest.fixture
def by_name(function: str) -> BitstreamRequest:
    return BitstreamRequest(bitstream_name=f"image {function}")


@pytest.fixture
def bitstream_requests(
    function: str, by_name: BitstreamRequest
) -> list[BitstreamRequest]:
    """Return all ways to search for the image."""
    return [BitstreamRequest(function_id=function), by_name]


@pytest.fixture
def upload(cloud: Cloud, function: str) -> Callable[..., str]:
    """Return a function that uploads a bitstream to a project and returns its id."""

    def upload(
        project: str, visibility: str, *, accepted: bool = False, **about: object
    ) -> str:
        image_id = cloud.upload(
            image_directory.gbs(REGION_ID, function),
            project=project,
            visibility=visibility,
            name=f"image {function}",
            tags=["FPGA"],
            **{"accel:function_id": function, **about},
        )
        if accepted and visibility == "shared":
            share(cloud, project, image_id)
            accept(cloud, image_id)
        return image_id

    return upload


def share(cloud: Cloud, project: str, image_id: str) -> None:
    """Share an image of another project with os_acc's."""
    cloud.images("admin", project).post(
        f"/v2/images/{image_id}/members", json={"member": cloud.projects["service"]}
    )


def accept(cloud: Cloud, image_id: str) -> None:
    """Accept an image that was shared with os_acc's project."""
    cloud.images("os_acc", "service").put(
        f"/v2/images/{image_id}/members/{cloud.projects['service']}",
        json={"status": "accepted"},
    )


# -- allowed projects -------------------------------------------------------------


@pytest.mark.parametrize("visibility", ["public", "community", "shared"])
def test_an_image_of_a_project_that_is_allowed_is_found_and_fetched(
    cloud: Cloud,
    images: Callable[..., Library],
    upload: Callable[..., str],
    bitstream_requests: list[BitstreamRequest],
    soon: float,
    visibility: str,
) -> None:
    image_id = upload("partner", visibility, accepted=True)
    tested = images(public=False)
    for requested in bitstream_requests:
        image = tested.image_for(requested, REGION, soon)
        assert image.id == image_id
    with tested.fetched(image, soon, region=REGION) as bitstream:
        assert Path(bitstream.path).read_bytes() == cloud.file(image_id).read_bytes()


def test_an_image_that_is_shared_is_found_once_it_is_accepted(
    cloud: Cloud,
    images: Callable[..., Library],
    upload: Callable[..., str],
    by_name: BitstreamRequest,
    soon: float,
) -> None:
    image_id = upload("partner", "shared")
    tested, by_id = images(), BitstreamRequest(bitstream_id=image_id)
    for requested in (by_id, by_name):
        with pytest.raises(exception.ImageNotFound):
            tested.image_for(requested, REGION, soon)
    share(cloud, "partner", image_id)
    assert tested.image_for(by_id, REGION, soon).id == image_id
    with pytest.raises(exception.ImageNotFound):
        tested.image_for(by_name, REGION, soon)
    accept(cloud, image_id)
    assert tested.image_for(by_name, REGION, soon).id == image_id


def test_a_private_image_of_a_project_that_is_allowed_takes_an_administrator(
    images: Callable[..., Library],
    upload: Callable[..., str],
    by_name: BitstreamRequest,
    soon: float,
) -> None:
    image_id = upload("partner", "private")
    with pytest.raises(exception.ImageNotFound):
        images().image_for(by_name, REGION, soon)
    assert images("admin").image_for(by_name, REGION, soon).id == image_id


# -- other projects ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("visibility", "user"),
    [
        ("shared", "os_acc"),
        ("public", "os_acc"),
        # An administrator sees all projects' images.
        ("private", "admin"),
    ],
)
def test_an_image_of_a_foreign_project_is_neither_picked_nor_in_the_way(
    images: Callable[..., Library],
    upload: Callable[..., str],
    bitstream_requests: list[BitstreamRequest],
    soon: float,
    visibility: str,
    user: str,
) -> None:
    upload("tenant", visibility, accepted=True)
    tested = images(user, public=False)
    for requested in bitstream_requests:
        with pytest.raises(exception.ImageNotFound):
            tested.image_for(requested, REGION, soon)
    ours = upload("service", "private")
    for requested in bitstream_requests:
        assert tested.image_for(requested, REGION, soon).id == ours


def test_an_image_of_a_foreign_project_is_refused_by_its_id(
    cloud: Cloud,
    images: Callable[..., Library],
    upload: Callable[..., str],
    soon: float,
) -> None:
    theirs = upload("tenant", "shared")
    share(cloud, "tenant", theirs)
    tested = images(public=False)
    with pytest.raises(exception.ImageRefused, match=theirs):
        tested.image_for(BitstreamRequest(bitstream_id=theirs), REGION, soon)
    with (
        pytest.raises(exception.ImageRefused),
        tested.fetched(tested.about(theirs, soon), soon),
    ):
        pass
    assert cloud.downloads(theirs) == []


def test_a_public_image_of_anybody_is_found_where_the_operator_wants_that(
    images: Callable[..., Library],
    upload: Callable[..., str],
    by_name: BitstreamRequest,
    soon: float,
) -> None:
    published = upload("tenant", "public")
    assert images(public=True).image_for(by_name, REGION, soon).id == published
