# SPDX-License-Identifier: Apache-2.0

"""Set-up of the stress lane: settings, places for hosts, result tables."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import hypothesis
import pytest

from os_acc.testing.helper import privileged_here
from tests.stress import host_directory, result_tables
from tests.stress.fuzzing import fuzzed, seed  # noqa: F401
from tests.stress.process_host import host, pristine, survived  # noqa: F401
from tests.stress.result_tables import counting, note_kills  # noqa: F401

_SLOW = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much]
for _name, _examples, _steps in (
    ("dev", 10, 30),
    ("stress", 60, 40),
    ("shrink", 60, 40),
):
    hypothesis.settings.register_profile(
        _name,
        max_examples=_examples,
        stateful_step_count=_steps,
        deadline=None,
        suppress_health_check=_SLOW,
        print_blob=True,
        database=None,
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that take minutes, so that no process waits for them."""
    longest = ("test_soak", "test_machine", "test_crash", "test_fuzz_privileged")
    order = {name: place for place, name in enumerate(longest)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


@pytest.fixture(scope="session")
def memory_directory() -> Iterator[str]:
    """Return the directory of this process in memory, or on disk."""
    with host_directory.own(host_directory.memory()) as directory:
        yield directory


@pytest.fixture
def place(memory_directory: str) -> Iterator[str]:
    """Return a directory for the test, in memory: hosts are copied very often."""
    with tempfile.TemporaryDirectory(dir=memory_directory) as directory:
        yield directory


@pytest.fixture(autouse=True)
def _in_this_process() -> Iterator[None]:
    """Run privileged code in the process that calls it."""
    with privileged_here():
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write the tables of faults and kills."""
    result_tables.summarize(terminalreporter)
