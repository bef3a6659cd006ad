# SPDX-License-Identifier: Apache-2.0

"""The image that an instance boots from may be invisible to the service."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Iterator

import pytest

from os_acc import exception
from os_acc.bitstreams import library
from os_acc.bitstreams.cache import Cache
from os_acc.bitstreams.library import Library
from os_acc.testing import uuid_of
from tests.expected_errors import raises
from tests.unit.bitstreams.fake_source import Place, id_of
from tests.unit.bitstreams.image_examples import RULES

OURS = uuid_of(1)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.DEBUG, library.LOG.name):
        yield caplog


def made(cache: Cache, unseen: int | None, place: Place | None = None) -> Library:
    def source() -> Place:
        if place is None:
            raise exception.InvalidConfiguration(
                "[os_acc_glance] is empty",
                reason=exception.ConfigurationReason.NOT_CONFIGURED,
            )
        return place

    return Library(source, cache, dataclasses.replace(RULES, unseen=unseen))


@pytest.mark.parametrize("unseen", [logging.DEBUG, logging.WARNING, None])
def test_an_image_that_is_seen_is_asked(cache, log, unseen):
    tested = made(cache, unseen, Place(b"one"))
    booted = tested.booted(id_of(1), OURS, math.inf)
    assert booted is not None
    assert booted.id == id_of(1)
    assert log.records == []


@pytest.mark.parametrize(
    ("unseen", "level"),
    [(logging.WARNING, "WARNING"), (logging.DEBUG, "DEBUG")],
)
def test_one_that_is_not_seen_asks_for_nothing_and_is_told_of(
    cache, log, unseen, level
):
    tested = made(cache, unseen, Place(b"one"))
    assert tested.booted(id_of(2), OURS, math.inf) is None
    (record,) = log.records
    assert record.levelname == level
    for expected in (id_of(2), OURS, "administrator", "instance_images"):
        assert expected in record.getMessage()


def test_the_operator_may_require_it_to_be_seen(cache):
    tested = made(cache, None, Place(b"one"))
    with pytest.raises(exception.ImageNotFound, match=OURS) as caught:
        tested.booted(id_of(2), OURS, math.inf)
    assert id_of(2) in str(caught.value)
    assert "instance_images" in caught.value.hint
    assert isinstance(caught.value.__cause__, exception.ImageNotFound)


def test_a_host_without_a_source_asks_nobody_unless_it_has_to(cache, log):
    assert made(cache, logging.WARNING).booted(id_of(1), OURS, math.inf) is None
    assert [record.levelname for record in log.records] == ["DEBUG"]
    with raises(exception.ConfigurationReason.NOT_CONFIGURED):
        made(cache, None).booted(id_of(1), OURS, math.inf)


def test_a_source_that_does_not_answer_is_no_answer(cache):
    class Silent(Place):
        def image(self, image_id: str, deadline: float):
            raise exception.ServiceUnavailable(
                "cannot reach Glance", service=exception.ServiceType.IMAGE
            )

    with raises(exception.ServiceType.IMAGE):
        made(cache, logging.WARNING, Silent()).booted(id_of(1), OURS, math.inf)
