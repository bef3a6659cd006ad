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

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from os_acc.testing import HostSpec
from tests.unit.bench import privileged_here
from tests.unit.xrt.xrt_bench import XrtBench, two_cards


@pytest.fixture
def make_cards(tmp_path: Path) -> Iterator[Callable[..., XrtBench]]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(privileged_here())

        def make(spec: HostSpec | None = None, **options: object) -> XrtBench:
            bench = XrtBench(tmp_path, spec or two_cards(), **options)
            stack.enter_context(bench.installed())
            stack.callback(bench.end)
            return bench

        yield make


@pytest.fixture
def cards(make_cards: Callable[..., XrtBench]) -> XrtBench:
    return make_cards()
