# SPDX-License-Identifier: Apache-2.0

"""Measure the discovery of PCI functions, against bare reads of the same attributes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from oslo_config import cfg

from benchmarks import host, measure, record
from benchmarks.plan import Benchmark, Plan, scratch
from benchmarks.reads import Kind, Reads
from benchmarks.rows import Aim, Count, Row
from os_acc.host import pci
from os_acc.host.pci import Host
from os_acc.inventory import discovery
from os_acc.objects import device_spec
from os_acc.objects.records import RecordedState
from os_acc.plugins import loader
from os_acc.testing import FakeKernel

NAME = "discovery"
SCAN, STOCK = "scan", "scan, judge and offer"
FLOOR = "bare reads of the same"
_SIZES = (16, 64, 256, 1024, 4096)
_AIM_AT = 1024
_AIM = Aim(1.5)
EVERYTHING = '{"address": "*:*:*.*"}'


def rows(plan: Plan) -> Iterator[Row]:
    """Yield rows for hosts of each size, scanned by the library and by bare reads."""
    for size in plan.sizes(*_SIZES):
        with scratch() as directory:
            root = os.path.join(directory, "host")
            FakeKernel.build(root, host.of(size))
            yield _row(plan, root, size, SCAN, scanning(root, size))
            yield _row(plan, root, size, STOCK, _stocking(root, size))


def scanning(root: str, size: int) -> measure.Work[Host]:
    """Return the work of one scan that has to find this number of functions."""

    def check(found: Host) -> None:
        assert len(found.functions) == len(found.groups) == size, "functions missing"
        assert not found.unreadable, found.unreadable
        vfs = [each for each in found.functions.values() if each.physfn is not None]
        assert len(vfs) == size - size // host.CARD, "VFs missing"

    return measure.Work(lambda: pci.scan(root), check)


def _stocking(root: str, size: int) -> measure.Work[discovery.Inventory]:
    rules = device_spec.OperatorRules(
        named=device_spec.parse((EVERYTHING,)),
        nova_policies=device_spec.nova_numa_policies(()),
        nova=device_spec.parse(()),
        nova_mdev_parents=frozenset(),
        nova_mdev_addresses=frozenset(),
        nova_mdev_types=frozenset(),
    )
    loaded = loader.load(cfg.ConfigOpts(), root, ())

    def check(found: discovery.Inventory) -> None:
        offered = sum(len(each.device.handles) for each in found.providers.values())
        # A PF with VFs is not offered itself.
        assert offered == size - size // host.CARD, f"{offered} are offered"
        assert not found.set_aside, found.set_aside

    return measure.Work(
        lambda: discovery.discover(root, rules, loaded, "node", RecordedState()),
        check,
    )


def _row(
    plan: Plan, root: str, size: int, case: str, subject: measure.Work[Any]
) -> Row:
    reads = record.record(root, subject.run)
    pairs = measure.paired(subject, reading(reads), plan.times(21), warm_up=3)
    return measure.row(
        pairs,
        benchmark=NAME,
        case=case,
        size=size,
        things="functions",
        floor_is=FLOOR,
        aim=_AIM if case == SCAN and size == _AIM_AT else None,
        counts=counts(reads),
    )


def reading(reads: Reads) -> measure.Work[int]:
    """Return the floor: the recorded reads."""

    def check(found: int) -> None:
        assert found == reads.expected(), f"{found} of {reads.expected()} read"

    return measure.Work(reads.again, check)


def counts(reads: Reads) -> tuple[Count, ...]:
    """Return the numbers of reads, for the table."""
    return tuple(
        Count(name, reads.number(kind))
        for name, kind in (("files", Kind.FILE), ("links", Kind.LINK))
    )


def _cases(plan: Plan) -> set[tuple[str, int]]:
    return {(case, size) for case in (SCAN, STOCK) for size in plan.sizes(*_SIZES)}


BENCHMARK = Benchmark(NAME, lambda plan: tuple(rows(plan)), _cases)
