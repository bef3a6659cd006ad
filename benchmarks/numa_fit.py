# SPDX-License-Identifier: Apache-2.0

"""Measure the fit of a guest to a host's NUMA cells, beside Nova's own function."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator

from benchmarks import measure
from benchmarks.numa_cases import CASES
from benchmarks.plan import Benchmark, Incomplete, Plan
from benchmarks.rows import Count, Row
from os_acc.numa.fit import Fit, fit_to_host

NAME = "numa-fit"
#: Seconds after which Nova's answer is cut off; its import may take longer.
DEADLINE = 20.0
_START = 120.0
_FLOOR = f"Nova 34, cut off after {DEADLINE:g} s"
_CELLS = (2, 4, 8, 16)


class _Nova:
    """Nova in a process of its own, which is killed at the deadline."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        #: The cases that were cut off once; they are not repeated.
        self.cut_off: set[tuple[str, int]] = set()

    def seconds(self, case: str, cells: int) -> float:
        """Return the seconds of Nova's answer, or the deadline."""
        if (case, cells) in self.cut_off:
            return DEADLINE
        if self._process is None:
            self._process = self._started()
        answer = self._asked(self._process, case, cells, DEADLINE)
        if answer is None:
            self.cut_off.add((case, cells))
            self.close()
            return DEADLINE
        seconds, found = answer
        assert (found is not None) is CASES[case][0], f"Nova says {found} to {case}"
        return seconds

    def close(self) -> None:
        """End its process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _started(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.numa_nova"],
            # nova-compute uses threads.
            env=os.environ | {"OS_NOVA_DISABLE_EVENTLET_PATCHING": "true"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._asked(process, next(iter(CASES)), _CELLS[0], _START) is None:
            process.kill()
            process.communicate()
            raise Incomplete(f"{NAME}: Nova does not answer")
        return process

    @staticmethod
    def _asked(
        process: subprocess.Popen[str], case: str, cells: int, timeout: float
    ) -> tuple[float, list[int] | None] | None:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([case, cells]) + "\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], timeout)[0]:
            return None
        line = process.stdout.readline()
        if not line:
            raise Incomplete(f"{NAME}: Nova's process has ended")
        seconds, found = json.loads(line)
        return seconds, found


def rows(plan: Plan) -> Iterator[Row]:
    """Yield rows for growing numbers of host cells, with guests of half as many."""
    with contextlib.closing(_Nova()) as nova:
        for case in CASES:
            for cells in plan.sizes(*_CELLS):
                yield _row(plan, nova, case, cells)


def _row(plan: Plan, nova: _Nova, case: str, cells: int) -> Row:
    fits, made = CASES[case]
    question = made(cells)

    def check(found: Fit) -> None:
        assert found.fits is fits, f"{found} to {case}"

    subject = measure.Work(lambda: fit_to_host(question), check)
    pairs = measure.alternating(
        lambda: measure.once(subject),
        lambda: nova.seconds(case, cells),
        plan.times(11),
    )
    return measure.row(
        pairs,
        benchmark=NAME,
        case=case,
        size=cells,
        things="cells",
        floor_is=_FLOOR,
        counts=(Count("times cut off", int((case, cells) in nova.cut_off)),),
    )


def _cases(plan: Plan) -> set[tuple[str, int]]:
    return {(case, cells) for case in CASES for cells in plan.sizes(*_CELLS)}


BENCHMARK = Benchmark(NAME, lambda plan: tuple(rows(plan)), _cases)
