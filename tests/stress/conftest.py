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


"""Survival, counted."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import hypothesis
import pytest

from os_acc import privsep
from tests.stress import fault_counts
from tests.stress.fault_counts import counting
from tests.stress.survival import Survival

__all__ = ["counting"]

_SLOW = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.filter_too_much]
for _name, _examples, _steps in (("dev", 10, 30), ("stress", 60, 40)):
    hypothesis.settings.register_profile(
        _name,
        max_examples=_examples,
        stateful_step_count=_steps,
        deadline=None,
        suppress_health_check=_SLOW,
        print_blob=True,
        database=None,
    )

_SURVIVAL = pytest.StashKey[Survival]()


@pytest.fixture(scope="session")
def survival(pytestconfig: pytest.Config) -> Survival:
    """The table at the end of the run."""
    return pytestconfig.stash.setdefault(_SURVIVAL, Survival())


@pytest.fixture
def place() -> Iterator[str]:
    """A directory in memory, where there is one: hosts are copied very often."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="os-acc-", dir=memory) as directory:
        yield directory


@pytest.fixture(autouse=True)
def _in_this_process() -> Iterator[None]:
    """Privileged code runs in the process that calls it."""
    contexts = (privsep.base, privsep.inspect)
    before = [context.client_mode for context in contexts]
    for context in contexts:
        context.set_client_mode(False)
    yield
    for context, mode in zip(contexts, before, strict=True):
        context.set_client_mode(mode)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    fault_counts.summarize(terminalreporter)
    counted = config.stash.get(_SURVIVAL, None)
    if counted is None or not counted.rows:
        return
    terminalreporter.section("points at which the process was killed")
    for line in counted.lines():
        terminalreporter.write_line(line)
