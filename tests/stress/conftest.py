# SPDX-License-Identifier: Apache-2.0

"""Survival, counted."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import hypothesis
import pytest

from os_acc.testing.privileged import privileged_here
from tests.stress import fault_tally, host_directory, survival_table
from tests.stress.fault_tally import counting
from tests.stress.fuzzing import fuzzed, seed
from tests.stress.process_host import host, pristine, survived
from tests.stress.survival_table import survival

__all__ = [
    "counting",
    "fuzzed",
    "host",
    "pristine",
    "seed",
    "survival",
    "survived",
]

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
    """Begin with what takes minutes, so that nobody waits for it at the end."""
    longest = ("test_soak", "test_machine", "test_crash", "test_fuzz_privileged")
    order = {name: place for place, name in enumerate(longest)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


@pytest.fixture(scope="session")
def own_ground() -> Iterator[str]:
    """What this process has in memory, where there is any."""
    with host_directory.own(host_directory.memory()) as directory:
        yield directory


@pytest.fixture
def place(own_ground: str) -> Iterator[str]:
    """A directory of the test's own: hosts are copied very often."""
    with tempfile.TemporaryDirectory(dir=own_ground) as directory:
        yield directory


@pytest.fixture(autouse=True)
def _in_this_process() -> Iterator[None]:
    """Privileged code runs in the process that calls it."""
    with privileged_here():
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was tried and survived."""
    for each in (fault_tally, survival_table):
        each.summarize(terminalreporter)
