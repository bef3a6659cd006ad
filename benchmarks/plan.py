# SPDX-License-Identifier: Apache-2.0

"""How much is measured in one run."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence

from benchmarks.rows import Row

# Where Linux keeps files in memory: a disk is not what is measured.
_MEMORY = "/dev/shm"


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """One run.

    :ivar short: only show that everything still runs.
    :ivar output: the directory for what one benchmark hands to another.
    :ivar kernel: whether the real kernel is measured in this run, before the rest.
    """

    short: bool
    output: str
    kernel: bool = False

    def sizes(self, *full: int) -> tuple[int, ...]:
        """All sizes, or the smallest one alone."""
        return full[:1] if self.short else full

    def times(self, full: int) -> int:
        """How often something is repeated."""
        return 3 if self.short else full


@dataclasses.dataclass(frozen=True, slots=True)
class Benchmark:
    """What one module measures.

    :ivar measure: does it.
    :ivar cases: what has to come out of it: case and size of each row.
    """

    name: str
    measure: Callable[[Plan], Sequence[Row]]
    cases: Callable[[Plan], set[tuple[str, int]]]


class Incomplete(Exception):
    """A benchmark ran, and did not measure what it should have."""


def complete(benchmark: Benchmark, plan: Plan) -> tuple[Row, ...]:
    """Run a benchmark.

    :raises Incomplete: a row is missing, or nobody knows of it.
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
    """A directory in memory, gone afterwards."""
    memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="os-acc-bench-", dir=memory) as directory:
        # An ordinary user's helper, or root without capabilities, looks in.
        os.chmod(directory, 0o755)
        yield directory
