# SPDX-License-Identifier: Apache-2.0

"""Digests, and the file names derived from them."""

import hashlib

import pytest

from os_acc import exception
from os_acc.objects.bitstream import DIGEST_LENGTHS, Digest, Image
from tests.expected_errors import raises
from tests.unit.bitstreams import image_examples

CONTENT = b"a bitstream"


def image(algorithm: str, value: str) -> Image:
    """Return an image with this hash."""
    return image_examples.image(name="loopback", hash_algo=algorithm, hash_value=value)


@pytest.mark.parametrize("algorithm", DIGEST_LENGTHS)
def test_a_digest_is_told_by_the_name_of_its_file(algorithm):
    value = hashlib.new(algorithm, CONTENT).hexdigest()
    digest = Digest.of(image(algorithm, value))
    assert digest.file_name == f"{algorithm}-{value}"
    assert Digest.of_file_name(digest.file_name) == digest
    hashing = digest.new()
    hashing.update(CONTENT)
    assert hashing.hexdigest() == digest.value


@pytest.mark.parametrize(
    ("algorithm", "value", "message"),
    [
        ("", "", "has no hash"),
        ("sha512", "", "has no hash"),
        ("", "0" * 128, "has no hash"),
        ("md5", "0" * 32, "'md5', which is not accepted"),
        ("sha1", "0" * 40, "'sha1', which is not accepted"),
        ("shake_128", "0" * 32, "is not accepted"),
        ("../sha512", "0" * 128, "is not accepted"),
        ("sha512", "0" * 127, "does not have the 128 digits"),
        ("sha512", "0" * 129, "does not have the 128 digits"),
        ("sha512", "A" * 128, "does not have the 128 digits"),
        ("sha256", "/" * 64, "does not have the 64 digits"),
        ("sha256", "0" * 64 + "\n", "does not have the 64 digits"),
        ("sha256", "\u0660" * 64, "does not have the 64 digits"),
    ],
)
def test_what_proves_nothing_is_refused(algorithm, value, message):
    with raises(exception.ImageReason.INVALID, match=message) as refused:
        Digest.of(image(algorithm, value))
    assert "loopback" in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize(
    "name",
    ["", "sha256", "sha256-", ".sha256-" + "0" * 64, "sha256-" + "0" * 63, "md5-0"],
)
def test_other_names_are_no_digests(name):
    assert Digest.of_file_name(name) is None
