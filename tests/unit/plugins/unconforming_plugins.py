# SPDX-License-Identifier: Apache-2.0

"""Plugins that each break one rule which a check of conformance is about.

:class:`Sound` breaks none: it marks a prepared device on the host, and sets a state of
the card through the kernel, as a vendor's plugin does.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

from os_acc import privsep
from os_acc.plugins import base
from os_acc.privsep import kernel
from os_acc.testing import AttributeSpec, FunctionSpec, SriovSpec, hosts
from os_acc.testing.device_specs import keep
from tests.unit import acme

HERE = "tests.unit.plugins.unconforming_plugins"


def set_state(function, text):
    keep(function, "acme_state", text)


STATE = AttributeSpec("acme_state", "idle", set_state, stays=True)


def card() -> FunctionSpec:
    """Return a card of the plugins' vendor."""
    return dataclasses.replace(hosts.fpga("0000:5e"), driver_attributes=(STATE,))


def card_with_vfs(count: int) -> FunctionSpec:
    """Return a card whose VFs are offered."""
    sriov = SriovSpec(count, 0x5001, "acmevf", boot_vfs=count, vf_attributes=(STATE,))
    return dataclasses.replace(card(), driver="acme", sriov=sriov)


class Sound(acme.Acme):
    """Offers each card as one device, and marks prepared functions."""

    contract_version: ClassVar[tuple[int, int]] = (1, 0)

    def discover(self, candidates: base.Candidates) -> Iterable[base.Device]:
        own = [
            each
            for each in candidates.usable
            if each.function.identity.vendor == self.conf.vendor
        ]
        for parent, of_card in itertools.groupby(own, key=lambda each: each.parent):
            alike = tuple(of_card)
            yield dataclasses.replace(
                acme.device(self, alike[0]),
                address=parent.address,
                identity=parent.identity,
                handles=tuple(each.handle() for each in alike),
            )

    def prepare(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        self.set(handle, "ready")
        self.mark(handle).parent.mkdir(parents=True, exist_ok=True)
        self.mark(handle).touch()

    def release(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        self.mark(handle).unlink(missing_ok=True)
        if Path(self.path(handle)).exists():
            self.set(handle, "idle")

    def mark(self, handle: base.AttachHandle) -> Path:
        return Path(self.root, "var/lib/acme", str(handle.address))

    def path(self, handle: base.AttachHandle) -> str:
        return f"{self.root}/sys/bus/pci/devices/{handle.address}/{STATE.name}"

    def set(self, handle: base.AttachHandle, text: str) -> None:
        kernel.current.write(self.path(handle), text)


context = privsep.Context(f"{HERE}.context", "unconforming_health", [])


@context.health_step
def _starts_test(target: privsep.StepTarget) -> privsep.HealthReading:
    target.write(target.address, STATE.name, "idle")
    return "", ()


class HealthWrites(Sound):
    """Starts a test of the card to read its health."""

    contexts = (context,)
    health_step = _starts_test


# -- discover() --------------------------------------------------------------------


class OffersUnitTwice(Sound):
    def discover(self, candidates: base.Candidates) -> Iterator[base.Device]:
        for each in super().discover(candidates):
            yield each
            yield each


class CountsScans(Sound):
    numbers = itertools.count()

    def discover(self, candidates: base.Candidates) -> Iterator[base.Device]:
        for each in super().discover(candidates):
            traits = frozenset({f"CUSTOM_SCAN_{next(self.numbers)}"})
            yield dataclasses.replace(each, traits=traits)


class WritesLog(Sound):
    def discover(self, candidates: base.Candidates) -> Iterator[base.Device]:
        with Path(self.root, "var-log-acme").open("a") as log:
            log.write("scan\n")
        yield from super().discover(candidates)


class ResetsCard(Sound):
    """Writes what the card has already."""

    def discover(self, candidates: base.Candidates) -> Iterator[base.Device]:
        for each in super().discover(candidates):
            self.set(each.handles[0], "idle")
            yield each


class NotesFirstScan(Sound):
    """Writes a note, which later scans find."""

    note = "var-note-acme"
    make = staticmethod(Path.touch)

    def discover(self, candidates: base.Candidates) -> Iterator[base.Device]:
        note = Path(self.root, self.note)
        if not note.exists():
            note.parent.mkdir(parents=True, exist_ok=True)
            self.make(note)
        yield from super().discover(candidates)


class NotesInRun(NotesFirstScan):
    """Writes its note where services keep their files until a reboot."""

    note = "run/acme/note"


class MakesDirectory(NotesFirstScan):
    """Makes a directory, and no file in it."""

    note = "var/lib/acme/scan"
    make = staticmethod(Path.mkdir)


class RemovesItsFile(Sound):
    """Writes a file at each scan, and removes it again."""

    def discover(self, candidates: base.Candidates) -> Iterator[base.Device]:
        lock = Path(self.root, "sys/acme-lock")
        lock.touch()
        lock.unlink()
        yield from super().discover(candidates)


class RewritesState(Sound):
    """Writes what a file of the host has already."""

    def discover(self, candidates: base.Candidates) -> Iterator[base.Device]:
        for each in super().discover(candidates):
            state = Path(self.path(each.handles[0]))
            state.write_text(state.read_text())
            yield each


class OpensAtScan(Sound):
    """Keeps a file of each scan open."""

    files: ClassVar[list[int]] = []

    def discover(self, candidates: base.Candidates) -> Iterator[base.Device]:
        for each in super().discover(candidates):
            self.files.append(os.open(self.path(each.handles[0]), os.O_RDONLY))
            yield each


class OpensAtPlug(Sound):
    """Keeps a pipe of each plug open."""

    def prepare(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        super().prepare(handle, steps)
        os.pipe()


class StartsThread(Sound):
    """Keeps a thread for which the interpreter waits at its end."""

    gate = threading.Event()
    is_daemon = False

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.has_started = False

    def release(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        super().release(handle, steps)
        if not self.has_started or self.is_daemon:
            self.has_started = True
            thread = threading.Thread(target=self.gate.wait, name="acme-watcher")
            thread.daemon = self.is_daemon
            thread.start()


class StartsThreads(StartsThread):
    """Leaves a thread behind at each unplug."""

    is_daemon = True


class NamesAfterFirstStart(Sound):
    """Names its device after the VF from the second start on."""

    starts = itertools.count()

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.start = next(self.starts)

    def discover(self, candidates: base.Candidates) -> Iterator[base.Device]:
        for each in super().discover(candidates):
            yield _after_vf(each) if self.start else each


class NamesAfterUsable(Sound):
    """Names its device after the first VF that is usable."""

    def discover(self, candidates: base.Candidates) -> Iterator[base.Device]:
        return map(_after_vf, super().discover(candidates))


class NamesAfterLast(Sound):
    """Names its device after the last VF that is usable."""

    def discover(self, candidates: base.Candidates) -> Iterator[base.Device]:
        for each in super().discover(candidates):
            yield _after_vf(each, -1)


class NamesAfterLoss(Sound):
    """Names its device after a VF once it has seen a scan without VFs."""

    has_lost = False

    def discover(self, candidates: base.Candidates) -> Iterator[base.Device]:
        found = tuple(super().discover(candidates))
        # Without VFs the PF itself is usable.
        self.has_lost |= any(each.handles[0].address == each.address for each in found)
        return map(_after_vf, found) if self.has_lost else iter(found)


def _after_vf(device: base.Device, position: int = 0) -> base.Device:
    address = device.handles[position].address
    identity = dataclasses.replace(device.identity, product=0x5001)
    return dataclasses.replace(device, address=address, identity=identity)


# -- prepare() and release() -------------------------------------------------------


class LeavesMark(Sound):
    def release(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        self.set(handle, "idle")


class PreparesOnce(Sound):
    def prepare(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        super().prepare(handle, steps)
        Path(f"{self.mark(handle)}.d").mkdir()

    def release(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        super().release(handle, steps)
        if Path(f"{self.mark(handle)}.d").exists():
            Path(f"{self.mark(handle)}.d").rmdir()


class CountsPreparations(Sound):
    def prepare(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        super().prepare(handle, steps)
        with self.mark(handle).open("a") as mark:
            mark.write("prepared\n")


class ReleasesOnce(Sound):
    """Finds no mark in the second release, nor in one without a preparation."""

    def release(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        self.mark(handle).unlink()
        super().release(handle, steps)


class ReleasesWhatItReturned(Sound):
    """Does not undo a preparation before which the card was not ready."""

    is_prepared = False

    def release(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        if self.is_prepared:
            super().release(handle, steps)


class IgnoresDeadline(Sound):
    gate = threading.Event()

    def prepare(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        self.gate.wait()


class IgnoresDeadlineAtRelease(Sound):
    def release(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        IgnoresDeadline.gate.wait()


# -- failures ----------------------------------------------------------------------


class Remembers(Sound):
    """Releases what it remembers, which a crash forgets."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.prepared = set()

    def prepare(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        self.prepared.add(handle.address)
        super().prepare(handle, steps)

    def release(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        if handle.address in self.prepared:
            super().release(handle, steps)


class TrustsState(Sound):
    """Removes its mark only if the card took the state that was written after it."""

    def prepare(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        self.mark(handle).parent.mkdir(parents=True, exist_ok=True)
        self.mark(handle).touch()
        self.set(handle, "ready")

    def release(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        if Path(self.path(handle)).read_text() == "ready\n":
            super().release(handle, steps)


class NeedsCard(Sound):
    """Cannot release a card that is gone."""

    def release(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        self.mark(handle).unlink(missing_ok=True)
        self.set(handle, "idle")


class KnowsOneDevice(Sound):
    """Confuses two devices that are prepared at once."""

    both = threading.Event()
    current: ClassVar[list[object]] = []

    def prepare(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        self.current.append(handle.address)
        if len(self.current) > 1:
            self.both.set()
        self.both.wait(10)
        if self.current[-1] != handle.address:
            raise RuntimeError(f"{handle.address} is not {self.current[-1]}")
        super().prepare(handle, steps)


class OffersWithoutCapacity(Sound):
    """Has capacity for one VF, and offers the other one all the same."""

    guard = threading.Lock()
    capacity = 1

    def prepare(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        with self.guard:
            if len(self.prepared() - {str(handle.address)}) >= self.capacity:
                raise base.HostStepFailed(
                    f"the card has no capacity for {handle.address}",
                    address=str(handle.address),
                    reason=base.StepReason.NO_CAPACITY,
                )
            super().prepare(handle, steps)

    def prepared(self) -> set[str]:
        return {each.name for each in Path(self.root, "var/lib/acme").glob("*")}


class DropsUnits(OffersWithoutCapacity):
    """Offers no other VF while one is prepared, instead of reserving them."""

    def discover(self, candidates: base.Candidates) -> Iterator[base.Device]:
        prepared = self.prepared()
        for each in super().discover(candidates):
            left = [one for one in each.handles if str(one.address) in prepared]
            yield dataclasses.replace(each, handles=tuple(left) or each.handles)


class LeavesNote(OffersWithoutCapacity):
    """Has capacity for two VFs, and notes for ever that both are prepared."""

    capacity = 2
    one_by_one = threading.Lock()

    def prepare(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        note = Path(self.root, "var/lib/acme-is-full")
        with self.one_by_one:
            try:
                super().prepare(handle, steps)
            except base.HostStepFailed:
                note.unlink(missing_ok=True)
                raise
            if len(self.prepared()) == self.capacity:
                note.touch()
