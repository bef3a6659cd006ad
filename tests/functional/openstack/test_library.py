# SPDX-License-Identifier: Apache-2.0

"""The library turns a flavor's request into a verified file in the cache."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from keystoneauth1.adapter import Adapter

from os_acc import exception
from os_acc.bitstreams import library
from os_acc.bitstreams.library import Library
from os_acc.objects.bitstream import BitstreamRequest
from os_acc.testing import image_directory
from tests.expected_errors import has
from tests.functional.openstack.cloud import PAGE, Cloud, sha512
from tests.functional.openstack.service import Service
from tests.unit.bitstreams import image_examples

REGION_ID = "ce489693-98f0-5f33-946d-560708be108a"
OTHER_REGION_ID = "69528db6-eb31-577a-8c36-68f9faa081f6"
REGION = dataclasses.replace(image_examples.REGION, interface_id=REGION_ID)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Return the state directory of the test."""
    path = tmp_path / "state"
    path.mkdir()
    return path


@pytest.fixture
def images(cloud: Cloud, state: Path) -> Library:
    """Return the tested library."""
    return library.build(cloud.conf(), str(state))


def cached(state: Path) -> list[str]:
    """Return the files in the cache, including temporary files."""
    directory = state / "bitstreams"
    return (
        sorted(path.name for path in directory.iterdir()) if directory.exists() else []
    )


def upload(
    cloud: Cloud,
    function: str,
    payload: bytes = image_directory.PAYLOAD,
    region: str = REGION_ID,
    **about: object,
) -> tuple[str, bytes]:
    """Upload a bitstream with its metadata to Glance; return its id and its bytes."""
    data = image_directory.gbs(region, function, payload)
    content = {
        "tags": ["FPGA"],
        "accel:function_id": function,
        "accel:function_name": f"function {function}",
        "accel:region_uuid": region,
        **about,
    }
    return cloud.upload(data, **content), data


# -- search ---------------------------------------------------------------------


@pytest.mark.parametrize("by", ["id", "name", "function_id", "function_name"])
def test_a_bitstream_is_found_fetched_and_proved(
    cloud: Cloud, images: Library, state: Path, soon: float, function: str, by: str
) -> None:
    # Other images fill whole pages, and do not match.
    for _ in range(PAGE + 1):
        upload(cloud, str(uuid.uuid4()))
    image_id, data = upload(cloud, function, name=f"image {function}")
    requested = {
        "id": BitstreamRequest(bitstream_id=image_id),
        "name": BitstreamRequest(bitstream_name=f"image {function}"),
        "function_id": BitstreamRequest(function_id=function),
        "function_name": BitstreamRequest(function_name=f"function {function}"),
    }[by]
    image = images.image_for(requested, REGION, soon)
    assert image.id == image_id
    with images.fetched(image, soon, region=REGION) as bitstream:
        assert Path(bitstream.path).read_bytes() == data
        assert bitstream.header.interface_id == REGION_ID
        assert bitstream.header.function_ids == (function,)
    assert cached(state) == [f"sha512-{sha512(data)}"]
    assert cloud.downloads(image_id) == ["- 200"]


def test_two_images_that_match(
    cloud: Cloud, images: Library, soon: float, function: str
) -> None:
    ids = [upload(cloud, function)[0] for _ in range(2)]
    with pytest.raises(
        exception.ImageUnusable, check=has(reason=exception.ImageReason.AMBIGUOUS)
    ) as error:
        images.image_for(BitstreamRequest(function_id=function), REGION, soon)
    assert all(image_id in str(error.value) for image_id in ids)


def test_no_image_that_matches(images: Library, soon: float, function: str) -> None:
    for requested in (
        BitstreamRequest(bitstream_id=function),
        BitstreamRequest(bitstream_name=function),
        BitstreamRequest(function_id=function),
        BitstreamRequest(function_name=function),
    ):
        with pytest.raises(exception.ImageNotFound, match=function):
            images.image_for(requested, REGION, soon)


def test_an_image_for_another_region(
    cloud: Cloud, images: Library, soon: float, function: str
) -> None:
    upload(cloud, function, region=OTHER_REGION_ID)
    with pytest.raises(
        exception.ImageUnusable,
        check=has(reason=exception.ImageReason.MISMATCH),
        match=OTHER_REGION_ID,
    ):
        images.image_for(BitstreamRequest(function_id=function), REGION, soon)


def test_a_tenants_image_is_neither_chosen_nor_in_the_way(
    cloud: Cloud, images: Library, soon: float, function: str
) -> None:
    upload(cloud, function, project="tenant", visibility="community")
    requested = BitstreamRequest(function_id=function)
    with pytest.raises(exception.BitstreamError):
        images.image_for(requested, REGION, soon)
    ours, _ = upload(cloud, function)
    assert images.image_for(requested, REGION, soon).id == ours


# -- events during a download ------------------------------------------------------


def once(action: Callable[[], object]) -> Callable[[int, int | None], None]:
    """Run an action when the first bytes have arrived."""
    pending = [action]

    def progress(done: int, size: int | None) -> None:
        while pending:
            pending.pop()()

    return progress


def test_a_server_that_is_killed_and_started_during_the_download(
    cloud: Cloud, images: Library, soon: float, function: str, large: bytes
) -> None:
    image_id, data = upload(cloud, function, large)
    image = images.about(image_id, soon)

    def killed() -> None:
        cloud.glance.kill()
        cloud.glance.begin()

    with images.fetched(image, soon, once(killed)) as bitstream:
        assert sha512(Path(bitstream.path).read_bytes()) == sha512(data)
    cloud.glance.await_start()
    first, second = cloud.downloads(image_id)
    assert first == "- 200"
    assert second.startswith("bytes=")
    assert second.endswith(" 206")


def test_a_token_that_ends_during_the_download(
    cloud: Cloud, images: Library, soon: float, function: str, large: bytes
) -> None:
    image_id, data = upload(cloud, function, large)
    image = images.about(image_id, soon)

    def revoked() -> None:
        access = adapter_of(images)
        cloud.revoke(access.session.get_token(access.auth))
        cloud.glance.restart()

    with images.fetched(image, soon, once(revoked)) as bitstream:
        assert sha512(Path(bitstream.path).read_bytes()) == sha512(data)
    statuses = [line.rpartition(" ")[2] for line in cloud.downloads(image_id)]
    assert statuses == ["200", "401", "206"]


def adapter_of(images: Library) -> Adapter:
    """Return the adapter with the credentials with which the images are requested."""
    client = images._source._client  # type: ignore[attr-defined]
    found: Adapter = client.call(
        lambda adapter: adapter, "get the credentials", time.monotonic() + 60.0
    )
    return found


@pytest.fixture
def brief(cloud: Cloud) -> Iterator[Service]:
    """Yield the same Keystone again, with tokens that are valid for a second."""
    options = cloud.home / "brief.conf"
    content = (cloud.home / "keystone.conf").read_text()
    options.write_text(f"{content}[token]\nexpiration = 1\n")
    service = Service(
        "brief",
        "keystone.wsgi.api",
        "/v3",
        cloud.home,
        {"OS_KEYSTONE_CONFIG_FILES": str(options)},
    )
    service.start()
    yield service
    service.kill()


def test_a_token_that_expires_during_the_download(
    cloud: Cloud,
    brief: Service,
    tmp_path: Path,
    soon: float,
    function: str,
    large: bytes,
) -> None:
    """The token expires on a host with a correct clock and on one with a slow clock."""
    image_id, data = upload(cloud, function, large)
    right, slow = (
        library.build(cloud.conf(), str(tmp_path / name)) for name in ("right", "slow")
    )
    # For this host a token seems to last an hour longer than it does.
    adapter_of(slow).auth.MIN_TOKEN_LIFE_SECONDS = -3600
    login = cloud.login("os_acc", "service")
    login.auth.auth_url = f"{brief.url}/v3"

    def fetch(images: Library, meanwhile: Callable[[], object]) -> None:
        image = images.about(image_id, soon)
        with images.fetched(image, soon, once(meanwhile)) as bitstream:
            assert sha512(Path(bitstream.path).read_bytes()) == sha512(data)

    def expired() -> None:
        # Not earlier: on a slow machine, one request takes longer than such a token.
        access = login.auth.get_access(login)
        for images in (right, slow):
            adapter_of(images).auth.auth_ref = access
        cloud.glance.kill()
        cloud.glance.begin()
        while cloud.is_good(access.auth_token):
            assert time.monotonic() < soon
            time.sleep(0.2)

    fetch(right, lambda: fetch(slow, expired))
    cloud.glance.await_start()
    statuses = [line.rpartition(" ")[2] for line in cloud.downloads(image_id)]
    assert statuses == ["200", "200", "401", "206", "206"]


def test_an_image_that_is_deleted_during_the_download_and_cannot_be_gone_on_with(
    cloud: Cloud, images: Library, state: Path, soon: float, function: str, large: bytes
) -> None:
    image_id, _ = upload(cloud, function, large)
    image = images.about(image_id, soon)

    def deleted() -> None:
        cloud.delete(image_id)
        cloud.glance.restart()

    with (
        pytest.raises(exception.ImageNotFound, match=image_id),
        images.fetched(image, soon, once(deleted)),
    ):
        pass
    statuses = [line.rpartition(" ")[2] for line in cloud.downloads(image_id)]
    assert statuses == ["200", "404"]
    assert cached(state) == []
