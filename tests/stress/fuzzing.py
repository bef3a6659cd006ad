# SPDX-License-Identifier: Apache-2.0

"""Shared parts of the fuzzing tests: their seed, and the number of tried calls."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator

import pytest

from tests import run_figures
from tests.shares import Share

#: Each fuzz is divided among so many shares.
SHARES = 30

#: Adds a number of calls of a kind to the figures of this test.
Fuzzed = Callable[[str, int], None]


@pytest.fixture
def fuzzed(request: pytest.FixtureRequest) -> Fuzzed:
    """Return a function that adds calls to the figures at the end of the run."""

    def note(kind: str, number: int) -> None:
        run_figures.note(request.node, f"fuzz: {kind}", number)

    return note


@pytest.fixture
def seed(pytestconfig: pytest.Config, share: Share) -> str:
    """Return the seed of ``--hypothesis-seed``, the share's or a random one."""
    chosen = pytestconfig.getoption("--hypothesis-seed")
    if chosen is None:
        chosen = share.number
    return str(secrets.randbits(32) if chosen is None else chosen)


@contextlib.contextmanager
def told(seed: str, number: int, call: str) -> Iterator[None]:
    """Add the call to an error within, and the option that repeats it."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"call {number} of --hypothesis-seed={seed}: {call}")
        raise
