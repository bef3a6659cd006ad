# SPDX-License-Identifier: Apache-2.0

"""Every benchmark that there is."""

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

#: What is measured on this machine itself, in this order.
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
#: What is measured in a virtual machine, by a command of its own.
KERNEL = "kernel"

#: What at least has to come out of it: benchmark and case.
_KERNEL_CASES = {
    ("real-plug", cycles.BOTH),
    ("real-plug", cycles.ONE_REQUEST),
    *(("real-plug-phases", case) for case, _ in phases.cases()),
    ("real-discovery", discovery.SCAN),
    ("real-pyudev", udev.FACTS),
    *((delays.WRITE, each) for each in delays.ATTRIBUTES),
}


def names() -> list[str]:
    """What can be chosen."""
    return [*(each.name for each in HOST), KERNEL]


def measure_kernel(plan: Plan) -> rows.Place:
    """Let the virtual machine measure.

    :raises Incomplete: it did not.
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
