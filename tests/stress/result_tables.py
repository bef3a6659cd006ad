# SPDX-License-Identifier: Apache-2.0

"""Tables of the faults and kills that a run has tried, for its last lines.

A row travels in its test's report, so that the tables are complete for any number
of test processes.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from tests import run_figures
from tests.stress.kills import Trial, Way
from tests.stress.recorder import Point

_KEY = "row of a table"
_KILLS = "points at which the process was killed"

#: A row of one test: the table, the flow, and numbers by the name of their column.
Row = tuple[str, str, Mapping[str, int]]


@dataclasses.dataclass(frozen=True, slots=True)
class Count:
    """The faults of one flow.

    :ivar places: the number of places at which the flow can be struck.
    :ivar faults: the number of faults at each place.
    """

    table: str
    flow: str
    places: int
    faults: int
    tried: int
    passed: int


#: Notes the faults that a test has tried.
Counting = Callable[[Count], None]
#: Notes the points of a flow, the kills there, and the number not survived.
NoteKills = Callable[[str, Mapping[Point, str], Sequence[Trial], int], None]


@pytest.fixture
def counting(request: pytest.FixtureRequest) -> Counting:
    """Return a function that adds the faults of a flow to a table."""

    def note(count: Count) -> None:
        numbers = dataclasses.asdict(count)
        row: Row = numbers.pop("table"), numbers.pop("flow"), numbers
        request.node.user_properties.append((_KEY, row))
        run_figures.note(request.node, count.table, count.passed)

    return note


@pytest.fixture
def note_kills(request: pytest.FixtureRequest) -> NoteKills:
    """Return a function that adds the kills of a flow to their table."""

    def note(
        flow: str, points: Mapping[Point, str], trials: Sequence[Trial], lost: int
    ) -> None:
        ways = collections.Counter(trial.way for trial in trials)
        kills = {way.name.lower(): ways[way] for way in Way}
        survived = len(trials) - lost
        row: Row = _KILLS, flow, {"points": len(points), **kills, "survived": survived}
        request.node.user_properties.append((_KEY, row))
        run_figures.note(request.node, "crash: points", len(points))
        run_figures.note(request.node, "crash: kills survived", survived)

    return note


def summarize(reporter: pytest.TerminalReporter) -> None:
    """Write the tables."""
    tables: dict[str, list[tuple[str, Mapping[str, int]]]]
    tables = collections.defaultdict(list)
    for report in [*reporter.getreports("passed"), *reporter.getreports("failed")]:
        # The report of a test's teardown has the properties once more.
        if getattr(report, "when", "") == "call":
            for key, value in report.user_properties:
                if key == _KEY:
                    table, flow, numbers = value
                    tables[table].append((flow, numbers))
    for table, rows in sorted(tables.items()):
        reporter.section(table)
        for line in _lines(sorted(rows, key=lambda row: row[0])):
            reporter.write_line(line)


def _lines(rows: Sequence[tuple[str, Mapping[str, int]]]) -> Iterator[str]:
    heads = list(rows[0][1])
    sums = {head: sum(numbers[head] for _, numbers in rows) for head in heads}
    width = max(len(flow) for flow, _ in rows)
    yield "  ".join(("flow".ljust(width), *(head.rjust(8) for head in heads)))
    for flow, numbers in (*rows, ("sum", sums)):
        cells = (str(numbers[head]).rjust(8) for head in heads)
        yield "  ".join((flow.ljust(width), *cells))
