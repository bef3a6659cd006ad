# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from os_acc.testing import HostSpec
from tests.unit.bench import privileged_here
from tests.unit.plugins.xrt.xrt_bench import XrtBench, two_cards


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
