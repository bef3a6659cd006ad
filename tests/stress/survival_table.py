# SPDX-License-Identifier: Apache-2.0

"""What was survived, as a table for the end of the run.

A row travels in its test's report, so that the table is whole however many
processes the tests were spread over.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from tests import run_figures
from tests.stress.kills import Trial, Way
from tests.stress.recorder import Point

_KEY = "kills survived"

#: Note the points of a flow, what was tried there, and how much was lost.
Survival = Callable[[str, Mapping[Point, str], Sequence[Trial], int], None]


@dataclasses.dataclass(frozen=True, slots=True)
class _Row:
    """One flow.

    :ivar kills: how many there were in each way.
    """

    flow: str
    points: int
    kills: tuple[int, ...]
    survived: int


@pytest.fixture
def survival(request: pytest.FixtureRequest) -> Survival:
    """Let the table at the end of the run show a flow."""

    def note(
        flow: str, points: Mapping[Point, str], trials: Sequence[Trial], lost: int
    ) -> None:
        ways = collections.Counter(trial.way for trial in trials)
        kills = tuple(ways[way] for way in Way)
        row = _Row(flow, len(points), kills, len(trials) - lost)
        request.node.user_properties.append((_KEY, dataclasses.astuple(row)))
        run_figures.note(request.node, "crash: points", row.points)
        run_figures.note(request.node, "crash: kills survived", row.survived)

    return note


def summarize(reporter: pytest.TerminalReporter) -> None:
    """Write the table."""
    reports = [*reporter.getreports("passed"), *reporter.getreports("failed")]
    rows = [
        _Row(*value)
        for report in reports
        # The report of a test's teardown has the properties once more.
        if getattr(report, "when", "") == "call"
        for key, value in report.user_properties
        if key == _KEY
    ]
    if not rows:
        return
    reporter.section("points at which the process was killed")
    for line in _lines(sorted(rows, key=lambda row: row.flow)):
        reporter.write_line(line)


def _lines(rows: Sequence[_Row]) -> Iterator[str]:
    heads = ("flow", "points", *(way.name.lower() for way in Way), "survived")
    cells = [
        (row.flow, *map(str, (row.points, *row.kills, row.survived))) for row in rows
    ]
    width = max(len(row.flow) for row in rows)
    for first, *others in (heads, *cells):
        yield "  ".join((first.ljust(width), *(cell.rjust(8) for cell in others)))
    points = sum(row.points for row in rows)
    kills = sum(sum(row.kills) for row in rows)
    survived = sum(row.survived for row in rows)
    yield f"{points} points, {kills} kills, {survived} survived"
