# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from os_acc.bitstreams import download
from os_acc.bitstreams.cache import Cache
from os_acc.bitstreams.glance import Glance
from tests.unit.bitstreams.cache_images import CONTENT, MUCH, numbered
from tests.unit.bitstreams.fake_source import Place
from tests.unit.bitstreams.glance_double import Double
from tests.unit.forked_processes import in_child, paused_child

__all__ = ["in_child", "paused_child"]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the pauses of retries to almost nothing."""
    monkeypatch.setattr(download, "FIRST_PAUSE", 0.0001)
    monkeypatch.setattr(download, "LONGEST_PAUSE", 0.001)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return the directory of the cache, which does not exist yet."""
    return tmp_path / "state" / "bitstreams"


@pytest.fixture
def make_cache(directory: Path) -> Callable[..., Cache]:
    """Return a function that opens the cache, as each process does for itself."""

    def make(size: int = MUCH) -> Cache:
        return Cache(str(directory.parent), size)

    return make


@pytest.fixture
def cache(make_cache: Callable[..., Cache]) -> Cache:
    """Open the cache, with more room than is needed."""
    return make_cache()


@pytest.fixture
def place() -> Place:
    """Build a source with one image."""
    return Place(CONTENT)


@pytest.fixture
def several() -> Place:
    """Build a source with four images of one size."""
    return Place(*map(numbered, range(1, 5)))


@pytest.fixture
def source(glance: Double) -> Glance:
    """Build a source of images from the Glance double."""
    return Glance(glance.conf())
