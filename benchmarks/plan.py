# SPDX-License-Identifier: Apache-2.0

"""The extent of one run."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence

from benchmarks.rows import Row

# Linux keeps these files in memory: no disk takes part in the measurement.
_MEMORY = "/dev/shm"


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """One run.

    :ivar short: only show that every benchmark still runs.
    :ivar output: the directory for files that one benchmark passes to another.
    :ivar kernel: the real kernel is measured in this run, before the rest.
    """

    short: bool
    output: str
    kernel: bool = False

    def sizes(self, *full: int) -> tuple[int, ...]:
        """Return all sizes, or in a short run the smallest one."""
        return full[:1] if self.short else full

    def times(self, full: int) -> int:
        """Return the number of repetitions."""
        return 3 if self.short else full


@dataclasses.dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark.

    :ivar measure: runs it and returns its rows.
    :ivar cases: returns the case and size of each expected row.
    """

    name: str
    measure: Callable[[Plan], Sequence[Row]]
    cases: Callable[[Plan], set[tuple[str, int]]]


class Incomplete(Exception):
    """The rows of a benchmark are not the expected ones."""


def complete(benchmark: Benchmark, plan: Plan) -> tuple[Row, ...]:
    """Run a benchmark.

    :raises Incomplete: a row is missing or unexpected.
    """
    rows = tuple(benchmark.measure(plan))
    found = {(row.case, row.size) for row in rows}
    wanted = benchmark.cases(plan)
    if found != wanted:
        raise Incomplete(
            f"{benchmark.name}: missing {sorted(wanted - found)},"
            f" not expected {sorted(found - wanted)}"
        )
    strange = {row.benchmark for row in rows} - {benchmark.name}
    if strange:
        raise Incomplete(f"{benchmark.name} has rows of {sorted(strange)}")
    return rows


@contextlib.contextmanager
def scratch() -> Iterator[str]:
    """Yield a directory in memory and remove it afterwards."""
    memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="os-acc-bench-", dir=memory) as directory:
        # An ordinary user's helper, and root without capabilities, read it.
        os.chmod(directory, 0o755)
        yield directory
