# SPDX-License-Identifier: Apache-2.0

"""Measure concurrent plugs and unplugs, with the real kernel's delays."""

from __future__ import annotations

import itertools
import statistics
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent import futures
from typing import Any

from benchmarks import measure, slow_host
from benchmarks.discovery import EVERYTHING
from benchmarks.plan import Benchmark, Plan
from benchmarks.rows import Aim, Bound, Row, Unit
from os_acc.attach.manager import Manager
from os_acc.testing import FunctionSpec, HostSpec
from tests.stress.simulated_host import request

NAME = "workers"
DISK, MEMORY = "plug and unplug", "plug and unplug, the store in memory"
_FLOOR = "one worker"
_DEVICES = 64
_WORKERS = (1, 2, 4, 16)
#: The aimed share of linear growth with the number of workers.
_LINEAR = 0.8

Request = tuple[dict[str, Any], dict[str, str]]


def measured(plan: Plan) -> Iterator[Row]:
    """Yield rows for growing numbers of threads, each with devices of its own."""
    for case in (DISK, MEMORY):
        host = HostSpec(tuple(_device(each) for each in _addresses()))
        with slow_host.made(plan, host, EVERYTHING, on_disk=case == DISK) as bench:
            before = bench.kernel.snapshot()
            manager = bench.start()
            requests = [request(manager, [address]) for address in _addresses()]
            for workers in plan.sizes(*reversed(_WORKERS)):
                yield _row(plan, manager, requests, case, workers)
            assert bench.kernel.snapshot() == before, "a device was left behind"


def _addresses() -> list[str]:
    return [f"0000:{number + 0x10:02x}:00.0" for number in range(_DEVICES)]


def _device(address: str) -> FunctionSpec:
    return FunctionSpec(address, 0x8086, 0x4940, 0x0B4000, "4xxx", numa_node=0)


def _row(
    plan: Plan, manager: Manager, requests: Sequence[Request], case: str, workers: int
) -> Row:
    cycles = 2 if plan.short else 6

    def many() -> float:
        return _throughput(manager, requests, workers, cycles)

    def one() -> float:
        return _throughput(manager, requests, 1, cycles)

    # The samples are cycles per second.
    pairs = measure.alternating(many, one, plan.times(5))
    return Row(
        benchmark=NAME,
        case=case,
        size=workers,
        things="workers",
        unit=Unit.PER_SECOND,
        median=statistics.median(pairs.subject),
        spread=measure.spread(pairs.subject),
        samples=len(pairs.subject),
        floor=statistics.median(pairs.floor),
        floor_is=_FLOOR,
        ratio=statistics.median(pairs.ratios),
        ratio_spread=measure.spread(pairs.ratios),
        aim=_aim(workers) if case == DISK else None,
    )


def _aim(workers: int) -> Aim | None:
    return None if workers == 1 else Aim(_LINEAR * workers, Bound.AT_LEAST)


def _throughput(
    manager: Manager, requests: Sequence[Request], workers: int, cycles: int
) -> float:
    """Return the cycles per second of all workers together."""
    with futures.ThreadPoolExecutor(workers) as pool:
        start = time.perf_counter()
        running = [
            pool.submit(_work, manager, requests[number::workers], cycles)
            for number in range(workers)
        ]
        for each in running:
            each.result()
        return workers * cycles / (time.perf_counter() - start)


def _work(manager: Manager, mine: Sequence[Request], cycles: int) -> None:
    for selected, specs in itertools.islice(itertools.cycle(mine), cycles):
        instance = {"uuid": str(uuid.uuid4())}
        (entry,) = manager.plug(instance, selected, specs)
        (provider,) = selected["allocations"]
        assert entry["device_rp_uuid"] == provider, "another device"
        assert manager.unplug(instance) == 1, "nothing was given back"


def _cases(plan: Plan) -> set[tuple[str, int]]:
    workers = plan.sizes(*reversed(_WORKERS))
    return {(case, each) for case in (DISK, MEMORY) for each in workers}


BENCHMARK = Benchmark(NAME, lambda plan: tuple(measured(plan)), _cases)
