# SPDX-License-Identifier: Apache-2.0

"""Images of one size, and functions for the tests of the cache."""

from __future__ import annotations

import os
import time
from pathlib import Path

from os_acc.bitstreams.cache import Cache
from os_acc.objects.bitstream import Digest, Image
from tests.unit.bitstreams.fake_source import Place

CONTENT = bytes(range(256)) * 10_000
SIZE = len(CONTENT)
#: Bytes; more than any test needs.
MUCH = 1 << 30


def patiently() -> float:
    return time.monotonic() + 60


def soon() -> float:
    return time.monotonic() + 0.05


def numbered(number: int) -> bytes:
    """Return content of the common size that is unique to this number."""
    return number.to_bytes(4, "big") + CONTENT[4:]


def get(cache: Cache, place: Place, image: Image | None = None) -> bytes:
    """Fetch an image, and return its content."""
    with cache.fetched(place, image or place.only, patiently()) as file:
        return file.read()


def names(directory: Path) -> set[str]:
    return set(os.listdir(directory))


def file_name(image: Image) -> str:
    return Digest.of(image).file_name


def numbers(cache: Cache, place: Place) -> list[int]:
    """Return the numbers of a place's cached images, least recently used first."""
    found = {Digest.of(each): n for n, each in enumerate(place.all.values(), start=1)}
    return [found[entry.digest] for entry in cache.survey().entries]


def use(cache: Cache, place: Place, *which: int) -> None:
    """Use images in this order, each at a different time."""
    images = list(place.all.values())
    for number in which:
        with cache.fetched(place, images[number - 1], patiently()) as file:
            # A file system's clock may not distinguish two of these.
            use.clock += 1
            os.utime(file.fileno(), (use.clock, use.clock))


use.clock = 1_000_000_000
