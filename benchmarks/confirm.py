# SPDX-License-Identifier: Apache-2.0

"""Measure a plug that only confirms an instance's leases, against its bare reads."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator

from benchmarks import discovery, host, leased, measure, record
from benchmarks.plan import Benchmark, Plan, scratch
from benchmarks.rows import Row
from os_acc.attach.manager import Manager
from os_acc.objects.api import AcceleratorEntry
from tests.stress.simulated_host import request

NAME = "confirm"
AGAIN, RECORDED = "plug(), the same again", "plug(), what is recorded"
_FLOOR = "bare reads, bare SELECT of its leases"
_SIZES = (16, 64, 256, 1024)


def rows(plan: Plan) -> Iterator[Row]:
    """Yield rows for hosts of each size, with all VFs leased."""
    for size in plan.sizes(*_SIZES):
        with scratch() as directory:
            bench = leased.bench(os.path.join(directory, "bench"), size)
            with leased.privileged_here(bench) as manager:
                yield from _of(plan, manager, size)


def _of(plan: Plan, manager: Manager, size: int) -> Iterator[Row]:
    consumer = leased.consumer(0)
    instance = {"uuid": consumer}
    vfs = host.vfs(size)
    selected, specs = request(manager, [host.of(size).functions[0].address])
    first = manager.plug(instance, selected, specs)
    (like,) = manager.store.leases()
    leased.lease(manager, like, [each for each in vfs if each != str(like.address)])

    def check(found: list[AcceleratorEntry]) -> None:
        assert found == first, "another device"
        assert len(manager.store.leases()) == len(vfs), "leases are missing"

    for case, args in ((AGAIN, (selected, specs)), (RECORDED, (None, None))):
        again = functools.partial(manager.plug, instance, *args)
        subject = measure.Work(again, check)
        reads = record.record(manager.root, subject.run)
        floor = leased.both(discovery.reading(reads), leased.rows_of(manager, consumer))
        pairs = measure.paired(subject, floor, plan.times(21))
        yield measure.row(
            pairs,
            benchmark=NAME,
            case=case,
            size=size,
            things="functions",
            floor_is=_FLOOR,
            counts=discovery.counts(reads),
        )


def _cases(plan: Plan) -> set[tuple[str, int]]:
    return {(case, size) for case in (AGAIN, RECORDED) for size in plan.sizes(*_SIZES)}


BENCHMARK = Benchmark(NAME, lambda plan: tuple(rows(plan)), _cases)
