# SPDX-License-Identifier: Apache-2.0

"""What fuzzing tests share: their seed, and how many calls they have tried."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator

import pytest

from tests import run_figures
from tests.shares import Share

#: Each fuzz is divided among so many shares.
SHARES = 10

#: Note how many calls of a kind were tried in this test.
Fuzzed = Callable[[str, int], None]


@pytest.fixture
def fuzzed(request: pytest.FixtureRequest) -> Fuzzed:
    """Let the lines at the end of the run show what was tried."""

    def note(kind: str, number: int) -> None:
        run_figures.note(request.node, f"fuzz: {kind}", number)

    return note


@pytest.fixture
def seed(pytestconfig: pytest.Config, share: Share) -> str:
    """The seed of ``--hypothesis-seed``, else the share's, else a random one."""
    chosen = pytestconfig.getoption("--hypothesis-seed")
    if chosen is None:
        chosen = share.number
    return str(secrets.randbits(32) if chosen is None else chosen)


@contextlib.contextmanager
def told(seed: str, number: int, call: str) -> Iterator[None]:
    """A failure within says which call it was, and how to have it again."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"call {number} of --hypothesis-seed={seed}: {call}")
        raise
