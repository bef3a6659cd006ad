# SPDX-License-Identifier: Apache-2.0

"""Measure plug and unplug of VFs on a fake kernel with the real kernel's delays.

In the virtual machine, computing takes about twenty times as long, but a device's
own work, above all its reset, does not. Here nothing is emulated.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence

from benchmarks import phases, slow_host
from benchmarks.cycles import SIZES, Bench, Script, Table
from benchmarks.delays import SlowKernel
from benchmarks.leased import VFS
from benchmarks.plan import Benchmark, Plan
from benchmarks.rows import Row
from os_acc.attach.manager import Manager
from os_acc.objects.api import InstanceDict
from os_acc.testing import FakeKernel, FunctionSpec, HostSpec, SriovSpec
from os_acc.testing.writes import Write, WriteOutcome

NAME, _PHASES = "plug", "plug-phases"
_FLOOR = "the same writes to the same fake kernel"
_TABLES = (
    Table(NAME, _FLOOR),
    Table(NAME, _FLOOR, ", the store in memory", full=False),
)
_CARDS = 10
_VFS = 4


def rows(plan: Plan) -> Iterator[Row]:
    """Yield rows with the store on a disk, and in memory."""
    for table in _TABLES:
        with slow_host.made(plan, _host(), VFS, on_disk=table.full) as made:
            library = _Library(made.start())
            scripts = {size: _script(library, made.kernel, size) for size in SIZES}
            slow = SlowKernel(made.root, slow_host.measured(plan))
            yield from table.rows(_Bench(library, scripts, slow), plan.times(15))


def phase_rows(plan: Plan) -> Iterator[Row]:
    """Yield the phases of one VF, with the store on a disk."""
    with slow_host.made(plan, _host(), VFS, on_disk=True) as made:
        library = _Library(made.start())
        yield from phases.rows(_PHASES, library, plan.times(15))


def _host() -> HostSpec:
    return HostSpec(tuple(_card(number) for number in range(_CARDS)))


def _card(number: int) -> FunctionSpec:
    # The VFs have no driver, as after their creation by the library.
    return FunctionSpec(
        f"0000:{number + 0x10:02x}:00.0",
        vendor=0x8086,
        product=0x4940,
        class_code=0x0B4000,
        driver="4xxx",
        sriov=SriovSpec(_VFS, 0x4941, offset=1, boot_vfs=_VFS),
    )


class _Library:
    """The library, with the VFs of one card."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._provider = manager.providers()[0]

    def plug(self, amount: int) -> InstanceDict:
        """Plug VFs for a new instance; return the instance."""
        guest: InstanceDict = {"uuid": str(uuid.uuid4()), "name": "guest"}
        specs = {f"resources1:{self._provider.device.resource_class}": str(amount)}
        entries = self._manager.plug(guest, {"uuid": self._provider.uuid}, specs)
        assert len(entries) == amount, entries
        return guest

    def unplug(self, guest: InstanceDict, amount: int) -> None:
        """Unplug all VFs of an instance."""
        released = self._manager.unplug(guest)
        assert released == amount, f"{released} of {amount} released"


def _script(library: _Library, kernel: FakeKernel, amount: int) -> Script[Write]:
    """Return the helper's writes, which the fake kernel records."""
    before = len(kernel.writes())
    guest = library.plug(amount)
    plug = kernel.writes(before)
    library.unplug(guest, amount)
    unplug = kernel.writes(before + len(plug))
    assert {each.outcome for each in (*plug, *unplug)} == {WriteOutcome.DONE}, "refused"
    return Script(tuple(plug), tuple(unplug))


class _Bench(Bench[Write]):
    """The library with its helper, and direct writes to the slow kernel."""

    def __init__(
        self, library: _Library, scripts: dict[int, Script[Write]], kernel: SlowKernel
    ) -> None:
        super().__init__(library, scripts)
        self._kernel = kernel
        self._before = kernel.snapshot()

    def _replay(self, writes: Sequence[Write], amount: int) -> None:
        for each in writes:
            self._kernel.write(os.path.join(self._kernel.root, each.path), each.text)

    def _check_plugged(self, amount: int) -> None:
        found = self._kernel.snapshot()
        ours = [each for each in found if each.driver == "vfio-pci"]
        assert len(ours) == amount, f"{len(ours)} of {amount} with vfio-pci"
        others = set(found) - set(ours)
        assert others <= set(self._before), "another function was changed"

    def _check_unplugged(self) -> None:
        assert self._kernel.snapshot() == self._before, "a device was left behind"


BENCHMARK = Benchmark(
    NAME,
    lambda plan: tuple(rows(plan)),
    lambda _plan: {case for table in _TABLES for case in table.cases()},
)
PHASES = Benchmark(
    _PHASES, lambda plan: tuple(phase_rows(plan)), lambda _plan: phases.cases()
)
