# SPDX-License-Identifier: Apache-2.0

"""Measure the import of os_acc, against that of os_vif."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from benchmarks import measure
from benchmarks.plan import Benchmark, Plan
from benchmarks.rows import Aim, Row

NAME = "import"
ALONE, WHOLE = "import os_acc", "import os_acc, with Python's own start"
EVERYTHING = "import all that initialize() needs"
_NEEDED = "os_acc.service, os_acc.plugins.pci, os_acc.privsep"
_PEER = "import os_vif"
_AIM = Aim(0.5)


def rows(plan: Plan) -> Iterator[Row]:
    """Yield rows of imports, each in an interpreter of its own."""
    times = plan.times(21)
    for case, module, sample, floor_is, aim in (
        (ALONE, "os_acc", _inside, _PEER, _AIM),
        (WHOLE, "os_acc", _outside, f"{_PEER}, with Python's own start", _AIM),
        (EVERYTHING, _NEEDED, _alone, _PEER, None),
    ):
        pairs = measure.alternating(
            _sampling(sample, module), _sampling(sample, "os_vif"), times, warm_up=2
        )
        yield measure.row(
            pairs,
            benchmark=NAME,
            case=case,
            size=1,
            things="process",
            floor_is=floor_is,
            aim=aim,
        )


def _sampling(sample: Callable[[str], float], module: str) -> Callable[[], float]:
    return lambda: sample(module)


def _inside(module: str, first: str = "") -> float:
    """Return the seconds that the new interpreter itself measures."""
    code = (
        f"import sys, time; {first} start = time.perf_counter();"
        f" import {module}; print(time.perf_counter() - start)"
    )
    return float(_python(code))


def _alone(module: str) -> float:
    """Measure an import without eventlet, which os_vif installs and privsep imports."""
    return _inside(module, "sys.modules['eventlet'] = None;")


def _outside(module: str) -> float:
    """Return the seconds from before the new interpreter's start until its end."""
    start = time.perf_counter()
    _python(f"import {module}")
    return time.perf_counter() - start


def _python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def _cases(_plan: Plan) -> set[tuple[str, int]]:
    return {(ALONE, 1), (WHOLE, 1), (EVERYTHING, 1)}


BENCHMARK = Benchmark(NAME, lambda plan: tuple(rows(plan)), _cases)
