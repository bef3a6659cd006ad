# SPDX-License-Identifier: Apache-2.0

"""Measure discovery on the real sysfs, against bare reads and against pyudev."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from benchmarks import discovery, measure, record, udev, udev_facts
from benchmarks.kernel.devices import MANY_VFS
from benchmarks.measure import Work
from benchmarks.rows import Aim, Row
from os_acc.host import pci
from os_acc.host.pci import Host
from tests.functional.kernel import sysfs

NAME, PYUDEV = "real-discovery", "real-pyudev"
_AIM_AT = 1024
_AIM, _AIM_PYUDEV = Aim(1.5), Aim(0.1)
#: The total number of functions to read; each scan is repeated at least three times.
_FUNCTIONS = 2000


def rows(pfs: Sequence[str], sizes: Sequence[int]) -> Iterator[Row]:
    """Yield rows for the machine as it is, then with VFs up to each size."""
    free = list(pfs)
    yield from _rows(_functions())
    for size in sizes:
        _grow(free, size)
        yield from _rows(size)


def _functions() -> int:
    return len(os.listdir(sysfs.DEVICES))


def _grow(free: list[str], size: int) -> None:
    """Create VFs, bound to no driver, until the machine has ``size`` functions."""
    while (missing := size - _functions()) > 0:
        pf = free.pop(0)
        sysfs.write(pf, "sriov_drivers_autoprobe", "0")
        sysfs.write(pf, "sriov_numvfs", str(min(missing, MANY_VFS)))
    assert _functions() == size, f"{_functions()} functions, not {size}"


def _rows(size: int) -> Iterator[Row]:
    scan = _scanning(size)
    reads = record.record("/", scan.run)
    yield measure.row(
        measure.paired(scan, discovery.reading(reads), _times(size, 15)),
        benchmark=NAME,
        case=discovery.SCAN,
        size=size,
        things="functions",
        floor_is=discovery.FLOOR,
        aim=_AIM if size == _AIM_AT else None,
        counts=discovery.counts(reads),
    )
    facts = udev_facts.facts_work(scan.run())
    yield measure.row(
        measure.paired(scan, facts, _times(size, 7)),
        benchmark=PYUDEV,
        case=udev.FACTS,
        size=size,
        things="functions",
        floor_is="pyudev, the same facts",
        aim=_AIM_PYUDEV if size == _AIM_AT else None,
    )


def _times(size: int, most: int) -> int:
    return max(3, min(most, _FUNCTIONS // size))


def _scanning(size: int) -> Work[Host]:
    def check(found: Host) -> None:
        grouped = {each for group in found.groups.values() for each in group.members}
        assert found.functions.keys() == grouped, "functions without a group"
        assert len(found.functions) == size, f"{len(found.functions)} of {size} found"
        assert not found.unreadable, found.unreadable

    return Work(lambda: pci.scan("/"), check)
