# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from os_acc.bitstreams import fetch
from os_acc.bitstreams.cache import Cache
from os_acc.bitstreams.glance.source import Glance
from os_acc.store.locks import Locks
from tests.unit.bitstreams.caching import CONTENT, MUCH, numbered
from tests.unit.bitstreams.glance_double import Double
from tests.unit.bitstreams.sources import Place
from tests.unit.children import in_child, paused_child

__all__ = ["in_child", "paused_child"]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let retries wait for next to nothing."""
    monkeypatch.setattr(fetch, "FIRST_PAUSE", 0.0001)
    monkeypatch.setattr(fetch, "LONGEST_PAUSE", 0.001)


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
