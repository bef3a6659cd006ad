# SPDX-License-Identifier: Apache-2.0

"""Figures of a test run, for its last lines and for the manual.

The figures of a test are in its report: they are correct for any number of test
processes.
"""

from __future__ import annotations

import collections
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import shares

_KEY = "figure"


def note(node: pytest.Item, name: str, number: int) -> None:
    """Add to a figure, if this test passes.

    :param name: the printed name of the figure.
    """
    # record_property() warns of JUnit's newer format, which is not ours.
    node.user_properties.append((_KEY, (name, number)))


def counts(name: str) -> Callable[..., None]:
    """Return a fixture that adds one to a figure for each passed test."""

    @pytest.fixture
    def counted(request: pytest.FixtureRequest) -> None:
        note(request.node, name, 1)

    return counted


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that stores the figures of a run."""
    parser.addoption(
        "--figures",
        metavar="FILE",
        help="write the figures of this run to a file",
    )


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config
) -> None:
    """Print the figures, and write them to the file, if one is named."""
    passed = [
        report
        for report in terminalreporter.getreports("passed")
        # The report of a test's teardown repeats its properties.
        if getattr(report, "when", "") == "call"
    ]
    figures: collections.Counter[str] = collections.Counter()
    for name, number in _noted(passed):
        figures[name] += number
    for name in sorted(figures):
        terminalreporter.write_line(f"{name}: {figures[name]:,}")
    if path := config.getoption("--figures"):
        figures["tests passed"] = len(passed)
        full = exitstatus == pytest.ExitCode.OK and shares.of(config).number is None
        run = {"commit": _commit(config.rootpath), "full": full, "figures": figures}
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(run, indent=1, sort_keys=True) + "\n")


def _commit(checkout: Path) -> str:
    """Return the tested commit, marked if files differ from it."""
    describe = ("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")
    command = ["git", "-C", str(checkout), *describe]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _noted(reports: list[pytest.TestReport]) -> Iterator[tuple[str, int]]:
    for report in reports:
        for key, value in report.user_properties:
            if key == _KEY:
                name, number = value
                yield name, number
