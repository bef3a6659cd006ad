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


"""How many scenarios have passed, for the last lines of a run.

What a test has counted travels in its report, so that the count is right
however many processes the tests were spread over. A ``conftest.py`` that
imports :func:`pytest_terminal_summary` prints it.
"""

from __future__ import annotations

import collections
from collections.abc import Callable

import pytest

_KEY = "behaviour scenario on"


def counts(kernel: str) -> Callable[..., None]:
    """A fixture: its test counts as a scenario on a kernel, if it passes."""

    @pytest.fixture
    def counted(request: pytest.FixtureRequest) -> None:
        # record_property() warns of JUnit's newer format, which is not ours.
        request.node.user_properties.append((_KEY, kernel))

    return counted


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many have passed on which kernel."""
    passed: list[pytest.TestReport] = terminalreporter.getreports("passed")
    numbers = collections.Counter(
        value
        for report in passed
        for key, value in report.user_properties
        if key == _KEY
    )
    for kernel, number in numbers.items():
        terminalreporter.write_line(f"behaviour scenarios: {number} on {kernel}")
