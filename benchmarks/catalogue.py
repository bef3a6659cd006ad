# SPDX-License-Identifier: Apache-2.0

"""The list of all benchmarks."""

from __future__ import annotations

import subprocess
import sys

from benchmarks import (
    assignment,
    cached_images,
    cached_plug,
    confirm,
    cycles,
    delays,
    discovery,
    fetch,
    imports,
    numa_fit,
    phases,
    plug,
    provider_tree,
    ready,
    rows,
    slow_host,
    udev,
    workers,
)
from benchmarks.plan import Benchmark, Incomplete, Plan

#: The benchmarks that run on this machine, in order.
HOST: tuple[Benchmark, ...] = (
    discovery.BENCHMARK,
    udev.BENCHMARK,
    imports.BENCHMARK,
    ready.BENCHMARK,
    confirm.BENCHMARK,
    provider_tree.BENCHMARK,
    assignment.BENCHMARK,
    numa_fit.BENCHMARK,
    plug.BENCHMARK,
    plug.PHASES,
    workers.BENCHMARK,
    fetch.BENCHMARK,
    cached_plug.BENCHMARK,
    cached_images.BENCHMARK,
)
#: The benchmark that a command of its own runs in a virtual machine.
KERNEL = "kernel"

#: The rows that it has to contain at least: benchmark and case.
_KERNEL_CASES = {
    ("real-plug", cycles.BOTH),
    ("real-plug", cycles.ONE_REQUEST),
    *(("real-plug-phases", case) for case, _ in phases.cases()),
    ("real-discovery", discovery.SCAN),
    ("real-pyudev", udev.FACTS),
    *((delays.WRITE, each) for each in delays.ATTRIBUTES),
}


def names() -> list[str]:
    """Return the names of all benchmarks."""
    return [*(each.name for each in HOST), KERNEL]


def measure_kernel(plan: Plan) -> rows.Place:
    """Run the benchmarks in the virtual machine.

    :raises Incomplete: the command failed, or rows are missing.
    """
    path = slow_host.kernel_results(plan)
    command = [sys.executable, "-m", "benchmarks.kernel", "--output", path]
    ended = subprocess.run(
        [*command, *(["--short"] if plan.short else [])], check=False
    )
    if ended.returncode:
        raise Incomplete(f"{KERNEL} ended with {ended.returncode}")
    (place,) = rows.load(path)
    found = {(row.benchmark, row.case) for row in place.rows}
    if missing := _KERNEL_CASES - found:
        raise Incomplete(f"{KERNEL}: missing {sorted(missing)}")
    return place
