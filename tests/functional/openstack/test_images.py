# SPDX-License-Identifier: Apache-2.0

"""Searches find the images that exist and that os_acc may see."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.bitstreams.glance import Glance
from tests.functional.openstack import tls_proxy
from tests.functional.openstack.cloud import PAGE, Cloud, sha512

FUNCTION = "9aeffe5f-8457-0612-c000-c9660d824272"
REGION = "ce489693-98f0-5f33-946d-560708be108a"


@pytest.fixture
def name() -> str:
    """Return a name that no other test gives an image."""
    return f"image {uuid.uuid4()}"


def found(source: Glance, deadline: float, **filters: str) -> set[str]:
    return {image.id for image in source.images(filters, deadline)}


def test_an_image_by_its_id(
    cloud: Cloud, source: Glance, soon: float, name: str
) -> None:
    data = b"a bitstream"
    properties = {"accel:function_id": FUNCTION, "accel:region_uuid": REGION}
    image_id = cloud.upload(
        data, name=name, visibility="public", tags=["FPGA"], **properties
    )
    image = source.image(image_id, soon)
    assert (image.id, image.name, image.status) == (image_id, name, "active")
    assert (image.visibility, image.hidden) == ("public", False)
    assert (image.disk_format, image.container_format) == ("raw", "bare")
    assert (image.hash_algo, image.hash_value) == ("sha512", sha512(data))
    assert (image.size, image.tags) == (len(data), frozenset({"FPGA"}))
    assert properties.items() <= dict(image.properties).items()
    assert image.owner == cloud.projects["service"]


@pytest.mark.parametrize("suffix", ["", ":v2", ' "2"', ":\\", " in:x,y", " ü"])
def test_images_by_their_name(
    cloud: Cloud, source: Glance, soon: float, name: str, suffix: str
) -> None:
    wanted = {cloud.upload(b"x", name=name + suffix) for _ in range(2)}
    cloud.upload(b"x", name=name + "another")
    assert found(source, soon, name=name + suffix) == wanted


def test_images_by_their_properties_and_tags(
    cloud: Cloud, source: Glance, soon: float
) -> None:
    function, region = str(uuid.uuid4()), str(uuid.uuid4())
    about = {"accel:function_id": function, "accel:region_uuid": region}
    wanted = cloud.upload(b"x", tags=["FPGA"], **about)
    cloud.upload(b"x", **about)
    cloud.upload(b"x", tags=["FPGA"], **{"accel:function_id": function})
    assert found(source, soon, tag="FPGA", **about) == {wanted}
    assert found(source, soon, **{"accel:function_id": str(uuid.uuid4())}) == set()


def test_more_images_than_fit_on_a_page(
    cloud: Cloud, source: Glance, soon: float, name: str
) -> None:
    wanted = {cloud.upload(b"x", name=name) for _ in range(2 * PAGE + 1)}
    assert found(source, soon, name=name) == wanted


def test_another_projects_private_image(
    cloud: Cloud, source: Glance, soon: float, name: str
) -> None:
    theirs = cloud.upload(b"x", name=name, project="tenant")
    assert found(source, soon, name=name) == set()
    with pytest.raises(exception.ImageNotFound, match="another project"):
        source.image(theirs, soon)


def test_a_deactivated_image(
    cloud: Cloud, source: Glance, soon: float, name: str
) -> None:
    image_id = cloud.upload(b"x", name=name)
    cloud.images("admin", "service").post(f"/v2/images/{image_id}/actions/deactivate")
    image = source.image(image_id, soon)
    assert image.status == "deactivated"
    assert found(source, soon, name=name) == {image_id}
    with (
        pytest.raises(exception.ImageNotFound, match="deactivated"),
        source.data(image, 0, soon),
    ):
        pass


def test_a_hidden_image_is_found_by_its_id_alone(
    cloud: Cloud, source: Glance, soon: float, name: str
) -> None:
    image_id = cloud.upload(b"x", name=name, os_hidden=True)
    assert found(source, soon, name=name) == set()
    assert source.image(image_id, soon).hidden


def test_an_image_that_has_neither_data_nor_a_hash(
    cloud: Cloud, source: Glance, soon: float
) -> None:
    image = source.image(cloud.upload(None), soon)
    assert (image.status, image.size) == ("queued", None)
    assert (image.hash_algo, image.hash_value) == ("", "")
    with pytest.raises(exception.ImageNotFound), source.data(image, 0, soon):
        pass


@pytest.mark.parametrize(
    "wrong",
    [
        {"password": "wrong"},
        {"username": "nobody"},
        {"project_name": "nothing"},
        {"region_name": "elsewhere"},
        {"valid_interfaces": "admin"},
        {"auth_type": "token", "token": "rubbish"},
    ],
    ids=str,
)
def test_options_that_lead_nowhere(
    cloud: Cloud, soon: float, wrong: dict[str, str]
) -> None:
    source = Glance(cloud.conf(**wrong))
    with pytest.raises(exception.InvalidConfiguration, match="os_acc_glance"):
        source.image(str(uuid.uuid4()), soon)


@pytest.fixture
def secure(cloud: Cloud, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Yield Glance's address behind TLS, and the certificate to trust."""
    chain, key = tls_proxy.certificate(tmp_path)
    with tls_proxy.door(cloud.glance.port, chain, key) as address:
        yield address, chain


def test_a_certificate_that_is_trusted(
    cloud: Cloud, soon: float, secure: tuple[str, Path]
) -> None:
    address, chain = secure
    source = Glance(cloud.conf(endpoint_override=address, cafile=chain))
    image = source.image(cloud.upload(b"x" * 3_000_000), soon)
    with source.data(image, 1_000_000, soon) as data:
        assert b"".join(data) == b"x" * 2_000_000


def test_a_certificate_that_nobody_vouches_for(
    cloud: Cloud, soon: float, secure: tuple[str, Path]
) -> None:
    source = Glance(cloud.conf(endpoint_override=secure[0]))
    with pytest.raises(exception.InvalidConfiguration, match="cafile"):
        source.image(str(uuid.uuid4()), soon)
