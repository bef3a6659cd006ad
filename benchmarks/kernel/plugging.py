# SPDX-License-Identifier: Apache-2.0

"""Measure plug and unplug of VFs, against the same writes in a bare loop as root."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

from benchmarks import cycles, measure
from benchmarks.counting import Counted
from benchmarks.cycles import Script, Table
from benchmarks.kernel import counting
from benchmarks.kernel.library import Library
from benchmarks.kernel.writes import Recorder, Write, replay
from benchmarks.rows import Row, Unit
from os_acc.privsep import kernel
from tests.functional.kernel import sysfs

WRITES = "write"
TABLE = Table("real-plug", "the same writes, as root")


def record(library: Library, recorder: Recorder, amount: int) -> Script[Write]:
    """Record the library's writes, which it makes in this process."""
    real, kernel.current = kernel.current, recorder
    try:
        guest = library.plug(amount)
        plug = recorder.take()
        library.unplug(guest, amount)
        return Script(plug, recorder.take())
    finally:
        kernel.current = real


class Bench(cycles.Bench[Write]):
    """The real library, and writes to the real attributes."""

    def __init__(self, library: Library, scripts: dict[int, Script[Write]]) -> None:
        super().__init__(library, scripts)
        self._vfs = library.vfs
        self._before = self._bindings()
        #: The seconds of the floor's single writes, by attribute.
        self.writes: dict[str, list[float]] = {}

    def _counting(self) -> AbstractContextManager[Counted]:
        return counting.counting_syncs()

    def _replay(self, writes: Sequence[Write], amount: int) -> None:
        seconds = replay(writes)
        if amount == 1:
            for write, each in zip(writes, seconds, strict=True):
                self.writes.setdefault(write.attribute, []).append(each)

    def _bindings(self) -> list[tuple[str | None, str | None]]:
        return [(sysfs.driver(each), sysfs.override(each)) for each in self._vfs]

    def _check_plugged(self, amount: int) -> None:
        ours = [each for each in self._vfs if sysfs.driver(each) == "vfio-pci"]
        assert len(ours) == amount, f"{len(ours)} of {amount} with vfio-pci"
        assert all(sysfs.vfio_node(each).exists() for each in ours)

    def _check_unplugged(self) -> None:
        assert self._bindings() == self._before, self._bindings()


def write_rows(writes: dict[str, list[float]]) -> Iterator[Row]:
    """Yield the kernel's time for one write to each attribute."""
    for attribute, seconds in sorted(writes.items()):
        yield Row(
            benchmark=WRITES,
            case=attribute,
            size=1,
            things="writes",
            unit=Unit.SECONDS,
            median=statistics.median(seconds),
            spread=measure.spread(seconds),
            samples=len(seconds),
        )
