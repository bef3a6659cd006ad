# SPDX-License-Identifier: Apache-2.0

"""Test cases of Nova as context managers, for the fixtures of pytest."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar

_Case = TypeVar("_Case", bound=Any)


@contextlib.contextmanager
def running(case: _Case) -> Iterator[_Case]:
    """Set up a test case of Nova, and run its cleanups after the block.

    :param case: a ``nova.test.TestCase``, which starts services when it is set up.
    """
    case.setUp()
    try:
        yield case
    finally:
        case.doCleanups()
