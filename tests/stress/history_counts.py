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


"""How long the histories were and what happened in them, for the end of a run.

A count travels in its test's report, so that it is whole however many
processes the tests were spread over.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable

import pytest

_KEY = "histories"


@dataclasses.dataclass(slots=True)
class Counts:
    """What was really carried out, and held.

    :ivar steps: those after which everything was as it has to be.
    :ivar deeds: how often what was done.
    """

    steps: int = 0
    histories: int = 0
    deeds: collections.Counter[str] = dataclasses.field(
        default_factory=collections.Counter
    )

    def add(self, steps: int, deeds: collections.Counter[str]) -> None:
        """Count one history that has come to its end."""
        self.histories += 1
        self.steps += steps
        self.deeds += deeds


@pytest.fixture
def counted_histories(request: pytest.FixtureRequest) -> Callable[[Counts], None]:
    """Let the end of the run tell what was done."""

    def note(counts: Counts) -> None:
        value = (counts.steps, counts.histories, dict(counts.deeds))
        request.node.user_properties.append((_KEY, value))

    return note


def summarize(reporter: pytest.TerminalReporter) -> None:
    """Write how many steps passed."""
    whole = Counts()
    for report in reporter.getreports("passed"):
        for key, value in report.user_properties:
            if key == _KEY:
                steps, histories, deeds = value
                whole.steps += steps
                whole.histories += histories
                whole.deeds += collections.Counter(deeds)
    if not whole.histories:
        return
    reporter.section("long random histories")
    reporter.write_line(
        f"state machine: {whole.steps:,} steps in {whole.histories:,} histories,"
        " no invariant broken"
    )
    deeds = (f"{count:,} {deed}" for deed, count in sorted(whole.deeds.items()))
    reporter.write_line(f"among them: {', '.join(deeds)}")
