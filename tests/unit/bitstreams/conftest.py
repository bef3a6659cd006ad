# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from os_acc.bitstreams import download
from os_acc.bitstreams.cache import Cache
from os_acc.bitstreams.glance.source import Glance
from os_acc.store.locks import Locks
from tests.unit.bitstreams.cache_images import CONTENT, MUCH, numbered
from tests.unit.bitstreams.fake_source import Place
from tests.unit.bitstreams.glance_double import Double
from tests.unit.forked_processes import in_child, paused_child

__all__ = ["in_child", "paused_child"]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let retries wait for next to nothing."""
    monkeypatch.setattr(download, "FIRST_PAUSE", 0.0001)
    monkeypatch.setattr(download, "LONGEST_PAUSE", 0.001)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of the cache, which is not there yet."""
    return tmp_path / "state" / "bitstreams"


@pytest.fixture
def make_cache(directory: Path) -> Callable[..., Cache]:
    """Open the cache, as each process does for itself."""

    def make(size: int = MUCH) -> Cache:
        return Cache(str(directory), size, Locks(str(directory.parent / "locks")))

    return make


@pytest.fixture
def cache(make_cache: Callable[..., Cache]) -> Cache:
    """The cache, with more room than is needed."""
    return make_cache()


@pytest.fixture
def place() -> Place:
    """One image."""
    return Place(CONTENT)


@pytest.fixture
def several() -> Place:
    """Four images of one size."""
    return Place(*map(numbered, range(1, 5)))


@pytest.fixture
def source(glance: Double) -> Glance:
    """What asks them."""
    return Glance(glance.conf())
