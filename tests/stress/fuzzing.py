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

"""What fuzzing tests share: their seed, and how many calls they have tried."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator

import pytest

from tests import counting
from tests.shares import Share

#: Each fuzz is divided among so many shares.
SHARES = 10

#: Note how many calls of a kind were tried in this test.
Fuzzed = Callable[[str, int], None]


@pytest.fixture
def fuzzed(request: pytest.FixtureRequest) -> Fuzzed:
    """Let the lines at the end of the run show what was tried."""

    def note(kind: str, number: int) -> None:
        counting.note(request.node, f"fuzz: {kind}", number)

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
