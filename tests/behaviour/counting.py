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


"""How many scenarios have passed, for the last lines of a run."""

from __future__ import annotations

from collections.abc import Callable

import pytest


class _Summary:
    def __init__(self, kernel: str) -> None:
        self.kernel = kernel
        self.passed: list[str] = []

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter
    ) -> None:
        terminalreporter.write_line(
            f"behaviour scenarios: {len(self.passed)} on {self.kernel}"
        )


def counts(kernel: str) -> Callable[..., list[str]]:
    """A fixture: the names of the scenarios that have passed on a kernel."""

    @pytest.fixture(scope="module")
    def passed(request: pytest.FixtureRequest) -> list[str]:
        summary = _Summary(kernel)
        request.config.pluginmanager.register(summary)
        return summary.passed

    return passed
