# SPDX-License-Identifier: Apache-2.0

"""Faults of Glance and its store during a download never give wrong image data."""

from __future__ import annotations

import pytest

from os_acc import exception
from os_acc.bitstreams.glance import Glance
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


def test_a_file_that_is_gone_behind_glances_back(
    cloud: Cloud, source: Glance, soon: float
) -> None:
    image = source.image(cloud.upload(b"x"), soon)
    cloud.file(image.id).unlink()
    with pytest.raises(exception.ImageNotFound), source.data(image, 0, soon):
        pass
