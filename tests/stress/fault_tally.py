# SPDX-License-Identifier: Apache-2.0

"""How many faults were tried and survived, for the last lines of a run.

A count travels in its test's report, so that the table is whole however many
processes the tests were spread over.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator

import pytest

from tests.run_figures import note as note_figure

_KEY = "faults tried"


@dataclasses.dataclass(frozen=True, slots=True)
class Count:
    """The faults of one flow.

    :ivar places: at how many places of the flow it can be struck.
    :ivar faults: what can strike there.
    """

    table: str
    flow: str
    places: int
    faults: int
    tried: int
    passed: int


#: Note how many were tried in this test.
Counting = Callable[[Count], None]


@pytest.fixture
def counting(request: pytest.FixtureRequest) -> Counting:
    """Let the table at the end of the run show what was tried."""

    def note(count: Count) -> None:
        request.node.user_properties.append((_KEY, dataclasses.astuple(count)))
        note_figure(request.node, count.table, count.passed)

    return note


def summarize(reporter: pytest.TerminalReporter) -> None:
    """Write the tables."""
    reports = [*reporter.getreports("passed"), *reporter.getreports("failed")]
    tables: dict[str, list[Count]] = collections.defaultdict(list)
    for report in reports:
        # The report of a test's teardown has the properties once more.
        if getattr(report, "when", "") != "call":
            continue
        for key, value in report.user_properties:
            if key == _KEY:
                count = Count(*value)
                tables[count.table].append(count)
    for table, counts in sorted(tables.items()):
        reporter.section(table)
        for line in _lines(counts):
            reporter.write_line(line)


def _lines(counts: list[Count]) -> Iterator[str]:
    heads = ("flow", "places", "faults", "tried", "passed")
    rows = [
        (each.flow, *map(str, (each.places, each.faults, each.tried, each.passed)))
        for each in sorted(counts, key=lambda each: each.flow)
    ]
    width = max(len(row[0]) for row in rows)
    for row in (heads, *rows):
        yield "  ".join((row[0].ljust(width), *(cell.rjust(6) for cell in row[1:])))
    tried, passed = (
        sum(getattr(each, n) for each in counts) for n in ("tried", "passed")
    )
    yield f"{tried} tried, {passed} passed"
