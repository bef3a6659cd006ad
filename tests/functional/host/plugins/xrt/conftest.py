# SPDX-License-Identifier: Apache-2.0

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from os_acc.testing import HostSpec
from tests.functional.host.plugins.xrt.xrt_host import XrtHost, two_cards


@pytest.fixture
def make_cards(tmp_path: Path) -> Iterator[Callable[..., XrtHost]]:
    with contextlib.ExitStack() as stack:

        def make(spec: HostSpec | None = None, **options: Any) -> XrtHost:
            return stack.enter_context(
                XrtHost(tmp_path, spec or two_cards(), **options)
            )

        yield make


@pytest.fixture
def cards(make_cards: Callable[..., XrtHost]) -> XrtHost:
    return make_cards()
