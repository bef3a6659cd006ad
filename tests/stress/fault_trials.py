# SPDX-License-Identifier: Apache-2.0

"""One fault at one write of a flow, and the checks after it."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import errno
import logging
import os
import select
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pytest

from os_acc import exception
from os_acc.attach import operator_actions
from os_acc.attach.manager import Manager
from os_acc.objects.lease import LeaseState
from os_acc.privsep import worker
from os_acc.testing import FakeKernel, Snapshot, TestHost, Write, WriteOutcome
from tests.stress import fault_flows, in_process_calls, recovery_checks
from tests.stress.fault_flows import NEXT, Flow, Kind
from tests.stress.flows import DFL
from tests.stress.result_tables import Count, Counting
from tests.stress.simulated_host import plug, simulated_host

_IOCTLS = {
    "DFL_FPGA_FME_PORT_PR": "program",
    "DFL_FPGA_FME_PORT_RELEASE": "release",
    "DFL_FPGA_FME_PORT_ASSIGN": "assign",
}


class Place(NamedTuple):
    """The n-th write of a flow to an attribute of a function."""

    address: str
    attribute: str
    number: int


class Effect(enum.Enum):
    """The effect of a fault on a write."""

    EBUSY = errno.EBUSY
    EIO = errno.EIO
    ENODEV = errno.ENODEV
    EINVAL = errno.EINVAL
    EAGAIN = errno.EAGAIN
    HANG = "it does not return"
    NOTHING = "it reports success without effect"

    @property
    def outcome(self) -> str:
        """The outcome that the kernel records."""
        others = {
            Effect.HANG: WriteOutcome.BLOCKED,
            Effect.NOTHING: WriteOutcome.IGNORED,
        }
        return others[self].value if self in others else self.name


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    """The result of a flow.

    :ivar text: the error, or the log; of a flow that fails by itself, its further
        failures. Empty: no failure.
    """

    error: exception.OsAccError | None
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """A flow, and the host that is ready for it.

    :ivar pristine: the host before os_acc changed it.
    """

    flow: Flow
    bench: TestHost
    pristine: Snapshot


def stage_of(flow: Flow, directory: str) -> Stage:
    """Return a new host at the start of a flow."""
    spec, wanted = fault_flows.host(flow), list(flow.device_spec)
    bench = simulated_host(directory, spec, device_spec=wanted)
    with bench.installed():
        flow.dress(bench)
        pristine = bench.kernel.snapshot()
        flow.prepare(bench)
    return Stage(flow, bench, pristine)


def places_of(writes: Sequence[Write], *, after_failure: bool) -> list[Place]:
    """Return the places at which a recorded flow can be struck.

    :param after_failure: only the writes after its own failure.
    """
    seen: collections.Counter[tuple[str, str]] = collections.Counter()
    found: list[Place] = []
    for write in writes:
        address, attribute = _about(write)
        if write.outcome == "ENOENT":
            # There was no such attribute: the write did not reach the kernel.
            continue
        seen[address, attribute] += 1
        found.append(Place(address, attribute, seen[address, attribute]))
        if after_failure and write.outcome != WriteOutcome.DONE:
            found.clear()
    return found


def _about(write: Write) -> tuple[str, str]:
    directory, attribute = os.path.split(write.path)
    if directory == "dev":
        # Only this card has such nodes.
        return DFL, _IOCTLS[write.text.split()[0]]
    if attribute in ("bind", "unbind", "drivers_probe"):
        return write.text.strip(), attribute
    return os.path.basename(directory), attribute


def record(stage: Stage, bench: TestHost) -> list[Place]:
    """Return the places of a flow that is not struck."""
    with bench.installed():
        manager = None if stage.flow.starts else stage.flow.ready(bench)
        stage.flow.begin(bench)
        count = len(bench.kernel.writes())
        result, _ = act(stage.flow, bench, manager)
        check_not_struck(stage.flow, result)
        writes = bench.kernel.writes()[count:]
    return places_of(writes, after_failure=stage.flow.fails)


def check_not_struck(flow: Flow, result: Told) -> None:
    """Check that a flow without a fault fails only if it does so by itself."""
    failed = bool(result.text) if flow.starts else result.error is not None
    assert failed == flow.fails, result


def survive(
    stage: Stage,
    place: str,
    counting: Counting,
    table: str,
    attempts: Mapping[str, Callable[[TestHost], None]],
    faults: int,
) -> None:
    """Run each attempt on a copy of the host, and count the results.

    :param table: the table that counts them.
    :param faults: number of attempts for each place of the flow.
    """
    troubles = []
    for number, (name, attempt) in enumerate(attempts.items()):
        bench = stage.bench.copy(os.path.join(place, str(number)))
        try:
            attempt(bench)
        except AssertionError:
            troubles.append(f"{name}:\n{traceback.format_exc()}")
        bench.remove()
    tried = len(attempts)
    passed = tried - len(troubles)
    counting(Count(table, stage.flow.name, tried // faults, faults, tried, passed))
    assert not troubles, f"{len(troubles)} not survived, the first:\n{troubles[0]}"


def attempt(
    stage: Stage, bench: TestHost, place: Place, effect: Effect, kind: type[Trial]
) -> None:
    """Strike one write, and check everything."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(bench.installed())
        stack.callback(bench.end_faults)
        kind(stage, bench, place, effect).run()


class Trial:
    """One fault at one write."""

    def __init__(
        self, stage: Stage, bench: TestHost, place: Place, effect: Effect
    ) -> None:
        self.stage = stage
        self.flow = stage.flow
        self.bench = bench
        self.kernel = bench.kernel
        self.place = place
        self.effect = effect

    def run(self) -> None:
        manager = None if self.flow.starts else self.flow.ready(self.bench)
        # First: the fault also counts the writes that another fault strikes.
        self._strike()
        self.flow.begin(self.bench)
        count = len(self.kernel.writes())
        with _time_flies(self.kernel, self.effect):
            result, manager = act(self.flow, self.bench, manager)
        self._check_struck(self.kernel.writes()[count:])
        if result.text:
            self._check_named(result)
            self._check_left(manager)
        else:
            assert self.effect is Effect.NOTHING, "a failure without an error"
            self.flow.check_done(self.bench, manager)
        self.flow.check_always(self.bench, manager)
        self._check_others_are_served(manager)
        self.bench.end_faults()
        put_in_order(self.stage, self.bench)

    def _strike(self) -> None:
        address, attribute, number = self.place
        match self.effect:
            case Effect.HANG:
                self.kernel.hang(address, attribute, nth=number)
            case Effect.NOTHING:
                self.kernel.ignore(address, attribute, nth=number)
            case _:
                self.kernel.fail(address, attribute, self.effect.value, nth=number)

    def _check_struck(self, writes: Sequence[Write]) -> None:
        wanted = (self.place.address, self.place.attribute)
        outcomes = [each.outcome for each in writes if _about(each) == wanted]
        assert self.effect.outcome in outcomes, f"not struck: {outcomes}"

    # -- a typed error that names the cause ----------------------------------

    def _check_named(self, result: Told) -> None:
        assert self.place.address in result.text, result
        if isinstance(self.effect.value, int):
            assert self.effect.name in result.text, result
            assert self.place.attribute in result.text, result
        if result.error is None or self.flow.fails:
            return
        why = result.error
        if isinstance(why, exception.DevicesUnreleased):
            ((_, why),) = why.unreleased
        assert isinstance(why, exception.HostError), repr(why)
        if isinstance(self.effect.value, int):
            assert type(why) is exception.HostStepFailed
            assert why.reason is exception.StepReason.REFUSED
            assert why.errno == self.effect.value
        assert isinstance(why, exception.DeviceStuck) == (self.effect is Effect.HANG)

    # -- the host as it was --------------------------------------------------

    def _check_left(self, manager: Manager) -> None:
        """Check that only the struck device differs, and that this is recorded."""
        leases = manager.store.leases()
        if self.flow.kind is Kind.TAKE and self.effect is not Effect.HANG:
            assert leases == (), "something is left of the plug"
        stuck = [
            lease
            for lease in leases
            if lease.state is not LeaseState.HELD or self.flow.kind is Kind.MAKE_READY
        ]
        expected = self.flow.kind.value
        if self.effect is Effect.HANG and self.flow.kind is not Kind.MAKE_READY:
            expected = LeaseState.RELEASING
        for lease in stuck:
            names = [str(address) for address in lease.members]
            assert self._is_of_struck(names), f"{lease.address} is {lease.state}"
            assert lease.state is expected, f"{lease.address} is {lease.state}"
        if expected is not None and not self.flow.makes_vfs:
            assert len(stuck) == 1, "a device that is not as it was is not recorded"
        exempt = {str(address) for lease in leases for address in lease.members}
        check_as_it_was(
            self.kernel, self.stage.pristine, {*exempt, self.flow.makes_vfs}
        )

    def _is_of_struck(self, names: list[str]) -> bool:
        """Return whether the fault has struck a lease of these functions."""
        return self.place.address in names

    # -- the next plug -------------------------------------------------------

    def _check_others_are_served(self, manager: Manager) -> None:
        """Check that another card can be plugged, and this one if it is free."""
        assert plug(manager, NEXT, self.flow.elsewhere)
        assert manager.unplug({"uuid": NEXT}) == 1
        check_not_given_twice(manager, self.flow)


def put_in_order(stage: Stage, bench: TestHost) -> None:
    """End the fault; check that the host is restored and the next plug works."""
    flow, kernel = stage.flow, bench.kernel
    manager = bench.start()
    with in_process_calls.for_workers():
        flow.again(manager)
        for lease in manager.store.leases():
            if lease.state is LeaseState.QUARANTINED:
                operator_actions.release_device(manager, lease.address, None)
        recovery_checks.unplug_all(manager)
        if flow.makes_vfs:
            flow.check_done(bench, manager)
            fault_flows.write(bench, flow.makes_vfs, "sriov_numvfs", "0")
        assert kernel.snapshot() == stage.pristine
        if flow.places:
            flow.next_plug(manager)
            recovery_checks.check_bound(manager.store.leases(), kernel)
            assert manager.unplug({"uuid": NEXT}) == len(flow.places)
            assert kernel.snapshot() == stage.pristine


def check_as_it_was(kernel: FakeKernel, pristine: Snapshot, exempt: set[str]) -> None:
    """Check that all functions but the exempt ones are unchanged."""
    before = {each.address: each for each in pristine}
    for now in kernel.snapshot():
        if now.address not in exempt:
            was = before.get(now.address, now)
            assert now == was, f"{now}, it was {was}"


def check_not_given_twice(manager: Manager, flow: Flow) -> None:
    """Check that plugs get free functions of a card, or none.

    Without any lease nothing is checked: the cards are plugged after the fault.
    """
    leases = manager.store.leases()
    taken = {str(address) for lease in leases for address in lease.members}
    offered = {str(each.device.address) for each in manager.providers()}
    if not taken:
        return
    for place in flow.places:
        if place not in offered:
            continue
        try:
            (entry,) = plug(manager, NEXT, place)
        except exception.NoDeviceAvailable:
            continue
        except exception.RegionUnusable as error:
            if error.reason is not exception.RegionReason.UNKNOWN:
                raise
            continue
        assert entry["pci_id"] not in taken, f"{place} is given twice"
        assert manager.unplug({"uuid": NEXT}) == 1


def act(flow: Flow, bench: TestHost, manager: Manager | None) -> tuple[Told, Manager]:
    error = None
    with listening() as log:
        if manager is None:
            manager = bench.start()
        else:
            try:
                flow.act(manager)
            except exception.OsAccError as caught:
                error = caught
    if error is None:
        return Told(None, "\n".join(log) if flow.starts else ""), manager
    notes = getattr(error, "__notes__", ())
    said = notes if flow.fails else (str(error), *notes)
    return Told(error, "\n".join(said)), manager


@contextlib.contextmanager
def listening() -> Iterator[list[str]]:
    """Collect the errors that os_acc logs."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Handler(logging.ERROR)
    logger = logging.getLogger("os_acc")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


@contextlib.contextmanager
def _time_flies(kernel: FakeKernel, effect: Effect) -> Iterator[None]:
    """Let a write that hangs reach its deadline at once, and nothing else.

    So no case waits, and none depends on the speed of the machine.
    """
    if effect is not Effect.HANG:
        yield
        return
    answers = worker._answers

    def awaited(child: tuple[int, int], count: int, deadline: float) -> object:
        pid, readable = child
        poll = select.poll()
        poll.register(readable, 0)
        # Hung up: the worker has ended.
        while not poll.poll(5):
            if any(_hangs(write, pid) for write in kernel.writes()):
                deadline = min(deadline, time.monotonic() + 0.02)
                break
        return answers(child, count, deadline)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "_answers", awaited)
        patch.setattr(worker, "_LOCK_SECONDS", 0.02)
        yield


def _hangs(write: Write, pid: int) -> bool:
    return write.pid == pid and write.outcome == WriteOutcome.BLOCKED
