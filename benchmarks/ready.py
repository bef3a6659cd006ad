# SPDX-License-Identifier: Apache-2.0

"""Measure ``initialize()``, against its bare reads."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from oslo_config import cfg

from benchmarks import discovery, host, leased, measure, record
from benchmarks.plan import Benchmark, Plan, scratch
from benchmarks.rows import Row
from os_acc import privsep
from os_acc.attach.manager import Manager
from os_acc.testing import TestHost, helper
from tests.stress import processes
from tests.stress.simulated_host import plug

NAME = "initialize"
READY, STARTED = "initialize()", "initialize(), the helpers' start included"
_READS = "bare reads, bare SELECT of all leases"
_STARTS = "two Pythons that import oslo_privsep.daemon, side by side"
# 1,020 VFs: enough for the largest number of leases.
_FUNCTIONS = 68 * host.CARD
_LEASES = (0, 10, 100, 1000)


def rows(plan: Plan) -> Iterator[Row]:
    """Yield rows for a host with 1,088 functions and growing numbers of leases."""
    functions = host.CARD if plan.short else _FUNCTIONS
    for leases in _leases(plan):
        with scratch() as directory:
            bench = leased.bench(os.path.join(directory, "bench"), functions)
            with leased.privileged_here(bench) as manager:
                _lease(manager, leases, functions)
                yield _ready(plan, bench, leases)
    with scratch() as directory:
        bench = leased.bench(os.path.join(directory, "bench"), functions)
        yield _started(plan, bench)


def _lease(manager: Manager, leases: int, functions: int) -> None:
    if not leases:
        return
    first, *others = host.vfs(functions)[:leases]
    plug(manager, leased.consumer(0), str(_card(first)))
    (like,) = manager.store.leases()
    taken = str(like.address)
    leased.lease(manager, like, [each for each in (first, *others) if each != taken])


def _card(vf: str) -> str:
    return vf[: -len("00.0")] + "00.0"


def _ready(plan: Plan, bench: TestHost, leases: int) -> Row:
    def check(ready: Manager) -> None:
        assert len(ready.store.leases()) == leases, "leases are missing"

    subject = measure.Work(bench.start, check)
    reads = record.record(bench.root, subject.run)
    floor = leased.both(discovery.reading(reads), leased.rows_of(bench.start()))
    pairs = measure.paired(subject, floor, plan.times(21))
    return measure.row(
        pairs,
        benchmark=NAME,
        case=READY,
        size=leases,
        things="leases",
        floor_is=_READS,
        counts=discovery.counts(reads),
    )


def _started(plan: Plan, bench: TestHost) -> Row:
    pairs = measure.alternating(
        lambda: _in_child(lambda: _start(bench)),
        lambda: _in_child(_two_pythons),
        plan.times(7),
    )
    return measure.row(
        pairs,
        benchmark=NAME,
        case=STARTED,
        size=0,
        things="leases",
        floor_is=_STARTS,
    )


def _in_child(function: Callable[[], float]) -> float:
    """Call it in a new child: a process keeps the helper that it has started."""
    ended = processes.call(function)
    if ended.trouble:
        raise RuntimeError(ended.trouble)
    return float(ended.value)


def _start(bench: TestHost) -> float:
    cfg.CONF([], default_config_files=[], default_config_dirs=[])
    for context in (privsep.base, privsep.inspect):
        context.set_client_mode(True)
        cfg.CONF.set_override(
            "helper_command", helper.command(bench.root), group=context.cfg_section
        )
    start = time.perf_counter()
    bench.start()
    seconds = time.perf_counter() - start
    for context in (privsep.base, privsep.inspect):
        assert context.channel is not None, "no helper was started"
        context.stop()
    return seconds


def _two_pythons() -> float:
    start = time.perf_counter()
    command = [sys.executable, "-c", "import oslo_privsep.daemon"]
    running = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(2)]
    for each in running:
        assert each.wait() == 0, "no Python"
    return time.perf_counter() - start


def _leases(plan: Plan) -> tuple[int, ...]:
    return _LEASES[1:2] if plan.short else _LEASES


def _cases(plan: Plan) -> set[tuple[str, int]]:
    return {(READY, leases) for leases in _leases(plan)} | {(STARTED, 0)}


BENCHMARK = Benchmark(NAME, lambda plan: tuple(rows(plan)), _cases)
