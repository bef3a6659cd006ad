# SPDX-License-Identifier: Apache-2.0

"""Faults of Glance and its store during a download never give wrong image data."""

from __future__ import annotations

import time

import pytest

from os_acc import exception
from os_acc.bitstreams.glance.source import Glance
from os_acc.bitstreams.source import ImageStream
from tests.expected_errors import has
from tests.functional.openstack.cloud import Cloud


def all_of(data: ImageStream) -> tuple[bytes, exception.ServiceUnavailable | None]:
    """Return the received data, and the final error."""
    pieces = []
    try:
        pieces.extend(data)
        return b"".join(pieces), None
    except exception.ServiceUnavailable as error:
        return b"".join(pieces), error


def token(source: Glance) -> str:
    """Return the current token of a source."""
    value = source._client.call(
        lambda access: access.session.get_token(access.auth),
        "get a token",
        time.monotonic() + 60.0,
    )
    assert value
    return value


def test_all_of_it(cloud: Cloud, source: Glance, soon: float, large: bytes) -> None:
    image = source.image(cloud.upload(large), soon)
    with source.data(image, 0, soon) as data:
        assert data.offset == 0
        assert all_of(data) == (large, None)


def test_from_the_middle_on(cloud: Cloud, source: Glance, soon: float) -> None:
    whole = bytes(range(256)) * 1024
    image = source.image(cloud.upload(whole), soon)
    for offset in (1, len(whole) // 2, len(whole) - 1):
        with source.data(image, offset, soon) as data:
            assert data.offset == offset
            assert all_of(data) == (whole[offset:], None)
    assert cloud.downloads(image.id)[-1] == f"bytes={len(whole) - 1}- 206"


def test_from_beyond_the_end_on(cloud: Cloud, source: Glance, soon: float) -> None:
    image = source.image(cloud.upload(b"short"), soon)
    with source.data(image, 5, soon) as data:
        assert data.offset == 0
        assert all_of(data) == (b"short", None)


def test_a_token_that_ends_during_the_download(
    cloud: Cloud, source: Glance, soon: float, large: bytes
) -> None:
    image = source.image(cloud.upload(large), soon)
    with source.data(image, 0, soon) as data:
        arrived = next(iter(data))
        first = token(source)
        cloud.revoke(first)
        cloud.glance.restart()
        rest, error = all_of(data)
    arrived += rest
    assert error is not None
    assert len(arrived) < len(large)
    with source.data(image, len(arrived), soon) as data:
        assert data.offset == len(arrived)
        rest, error = all_of(data)
    assert error is None
    assert arrived + rest == large
    assert token(source) != first
    assert cloud.downloads(image.id)[-2:] == [
        f"bytes={len(arrived)}- 401",
        f"bytes={len(arrived)}- 206",
    ]


def test_a_server_that_is_killed_and_started_during_the_download(
    cloud: Cloud, source: Glance, soon: float, large: bytes
) -> None:
    image = source.image(cloud.upload(large), soon)
    with source.data(image, 0, soon) as data:
        arrived = next(iter(data))
        cloud.glance.kill()
        rest, error = all_of(data)
    arrived += rest
    assert error is not None
    assert error.retryable
    assert large.startswith(arrived)
    cloud.glance.start()
    with source.data(image, len(arrived), soon) as data:
        assert data.offset == len(arrived)
        assert arrived + all_of(data)[0] == large


def test_a_server_that_comes_while_it_is_asked(
    cloud: Cloud, soon: float, large: bytes
) -> None:
    source = Glance(cloud.conf(connect_retries=1000, connect_retry_delay=0.2))
    image = source.image(cloud.upload(b"x"), soon)
    cloud.glance.kill()
    with pytest.raises(
        exception.ServiceUnavailable,
        check=has(service=exception.ServiceType.IMAGE),
        match="cannot reach Glance",
    ):
        Glance(cloud.conf(connect_retries=0)).image(image.id, soon)
    cloud.glance.begin()
    assert source.image(image.id, soon) == image
    cloud.glance.await_start()


def test_a_file_that_was_cut_short_behind_glances_back(
    cloud: Cloud, source: Glance, soon: float, large: bytes
) -> None:
    image = source.image(cloud.upload(large), soon)
    with cloud.file(image.id).open("r+b") as file:
        file.truncate(len(large) // 2)
    with source.data(image, 0, soon) as data:
        arrived, error = all_of(data)
    assert error is not None
    assert large.startswith(arrived)
    assert len(arrived) <= len(large) // 2


def test_a_file_that_was_changed_behind_glances_back_is_not_proved_here(
    cloud: Cloud, source: Glance, soon: float
) -> None:
    # Nor does glanceclient: the process that writes the file hashes the data.
    image = source.image(cloud.upload(b"good"), soon)
    cloud.file(image.id).write_bytes(b"evil")
    with source.data(image, 0, soon) as data:
        assert all_of(data) == (b"evil", None)


def test_a_file_that_is_gone_behind_glances_back(
    cloud: Cloud, source: Glance, soon: float
) -> None:
    image = source.image(cloud.upload(b"x"), soon)
    cloud.file(image.id).unlink()
    with pytest.raises(exception.ImageNotFound), source.data(image, 0, soon):
        pass
