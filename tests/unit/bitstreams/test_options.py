# SPDX-License-Identifier: Apache-2.0

"""The options of bitstreams are read, and invalid values are rejected."""

import logging
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.bitstreams import options
from os_acc.testing.test_host import config_of


def load(place: Path, *lines: str) -> options.BitstreamSettings:
    """Return the settings of a configuration file with these lines."""
    path = place / "os-acc.conf"
    path.write_text("\n".join(["[os_acc_bitstreams]", *lines]) + "\n")
    return options.BitstreamSettings.load(config_of(path))


def test_what_is_not_said_has_a_default(tmp_path):
    settings = load(tmp_path)
    assert settings.source == "glance"
    assert settings.cache_size == 10 * 2**30


def test_what_is_said_holds_when_it_is_read_again(tmp_path):
    lines = ("source = directory", "directory = /srv/images", "cache_size = 5")
    settings = load(tmp_path, *lines)
    assert settings == load(tmp_path, *lines)
    assert settings.source == "directory"
    assert settings.directory == "/srv/images"
    assert settings.cache_size == 5


@pytest.mark.parametrize(
    ("lines", "unseen"),
    [
        ((), logging.WARNING),
        (("source = directory",), logging.DEBUG),
        (("instance_images = required",), None),
        (
            ("source = directory", "instance_images = required"),
            None,
        ),
    ],
)
def test_the_image_of_an_instance_that_is_not_seen_is_the_operators_to_judge(
    tmp_path, lines, unseen
):
    assert load(tmp_path, *lines).unseen is unseen


@pytest.mark.parametrize(
    "line",
    [
        "source = elsewhere",
        "source =",
        "instance_images = always",
        "instance_images =",
        "directory = images",
        "directory =",
        "certificates = certificates",
        "cache_size = much",
        "cache_size = 0",
        "cache_size =",
    ],
)
def test_a_value_of_no_use_is_refused(tmp_path, line):
    with pytest.raises(exception.InvalidConfiguration, match=line.partition(" ")[0]):
        load(tmp_path, line)


def test_a_name_that_stands_for_no_option_is_refused(tmp_path):
    with pytest.raises(exception.InvalidConfiguration, match="nothing"):
        load(tmp_path, "directory = $nothing")


def test_a_release_programs_only_where_the_operator_says_so(tmp_path):
    for lines, expected in (
        ((), False),
        (("reprogram_at_release = false",), False),
        (("reprogram_at_release = true",), True),
    ):
        assert load(tmp_path, *lines).reprogram_at_release is expected
