# SPDX-License-Identifier: Apache-2.0

"""A full disk loses no lease, and leaves no device half-way.

Each flow is recorded once; then the disk is full from each write of the
store on, and once more only for this write.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pytest

from os_acc import exception
from os_acc.attach.manager import Manager
from os_acc.objects.lease import LeaseState
from os_acc.testing import TestHost
from tests.stress import fault_flows, fault_trials, processes
from tests.stress.fault_flows import NEXT, Flow, Kind
from tests.stress.fault_trials import Stage
from tests.stress.flows import INSTANCE, MIGRATION, by_name
from tests.stress.full_disk import Disk
from tests.stress.result_tables import Count
from tests.stress.simulated_host import plug


class Rekey(fault_flows.GiveBackCard):
    name = "re-key"
    kind = Kind.MAKE_READY

    def act(self, manager: Manager) -> None:
        assert manager.rekey(INSTANCE, MIGRATION) == 1

    def check_done(self, bench: TestHost, manager: Manager) -> None:
        (lease,) = manager.store.leases(MIGRATION)
        assert lease.state is LeaseState.HELD


FLOWS: Mapping[str, Flow] = by_name(
    fault_flows.TakeCard,
    fault_flows.GiveBackCard,
    fault_flows.Replay,
    fault_flows.Reboot,
    fault_flows.NumVfs,
    Rekey,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Told:
    """The result of a flow.

    :ivar error: the error that it raised, if any.
    :ivar manager: the library, started again if it did not start.
    :ivar log: the errors that it logged.
    """

    error: exception.OsAccError | None
    manager: Manager
    log: str


class Trial(NamedTuple):
    """A disk that is full.

    :ivar number: the first write that finds it full, counted from 1.
    :ivar stays: whether the next write finds it full as well.
    """

    number: int
    stays: bool


@pytest.fixture(params=FLOWS)
def stage(request: pytest.FixtureRequest, place: str) -> Stage:
    made = fault_trials.stage_of(FLOWS[request.param], os.path.join(place, "stage"))
    os.makedirs(made.bench.state_path, exist_ok=True)
    return made


def test_the_disk_is_full_at_each_write(stage, place, counting):
    writes = _record(stage, stage.bench.copy(os.path.join(place, "recorded")))
    assert writes, "the flow writes nothing"
    trials = list(_trials(writes))

    def attempt(trial: Trial) -> str:
        bench = stage.bench.copy(os.path.join(place, str(trials.index(trial))))
        ended = processes.call(lambda: _attempt(stage, bench, trial))
        bench.remove()
        where = f"{trial}, {writes[trial.number - 1]}"
        return f"{where}:\n{ended.why}" if ended.why else ""

    troubles = [trouble for trial in trials if (trouble := attempt(trial))]
    counting(
        Count(
            "a full disk at each write of the store",
            stage.flow.name,
            len(writes),
            2,
            len(trials),
            len(trials) - len(troubles),
        )
    )
    assert not troubles, f"{len(troubles)} not survived, the first:\n{troubles[0]}"


def _trials(writes: Sequence[str]) -> Iterator[Trial]:
    for number in range(1, len(writes) + 1):
        yield Trial(number, True)
        yield Trial(number, False)


def _record(stage: Stage, bench: TestHost) -> list[str]:
    def run() -> list[str]:
        disk = Disk(bench.state_path)
        assert _act(stage.flow, bench, disk).error is None
        return disk.writes

    writes: list[str] = processes.result(run)
    return writes


def _attempt(stage: Stage, bench: TestHost, trial: Trial) -> None:
    """Let the disk be full at one write, and check everything."""
    flow, kernel = stage.flow, bench.kernel
    disk = Disk(bench.state_path, *trial)
    result = _act(flow, bench, disk)
    assert len(disk.writes) >= trial.number, "the write is not there any more"
    if result.error is not None:
        _check_named(result.error)
    elif result.log:
        assert "/state" in result.log, result.log
    else:
        flow.check_done(bench, result.manager)
    leases = result.manager.store.leases()
    taken = {str(address) for lease in leases for address in lease.members}
    exempt = {*taken, flow.makes_vfs}
    fault_trials.check_as_it_was(kernel, stage.pristine, exempt)
    if flow.kind is Kind.MAKE_READY:
        assert len(leases) == 1, "the lease is lost"
    if flow.kind is Kind.TAKE and result.error is not None and not flow.starts:
        assert kernel.snapshot() == stage.pristine
        assert not leases or _may_be_recorded(trial, disk), "a lease is left"
    assert plug(result.manager, NEXT, flow.elsewhere)
    assert result.manager.unplug({"uuid": NEXT}) == 1
    fault_trials.check_not_given_twice(result.manager, flow)
    fault_trials.put_in_order(stage, bench)


def _act(flow: Flow, bench: TestHost, disk: Disk) -> Told:
    bench.install()
    logging.disable(logging.NOTSET)
    manager = None if flow.starts else flow.ready(bench)
    flow.begin(bench)
    error = None
    try:
        with disk.watched(), fault_trials.listening() as log:
            if manager is None:
                manager = bench.start()
            else:
                flow.act(manager)
    except exception.OsAccError as caught:
        error = caught
    return Told(error, manager or bench.start(), "\n".join(log))


def _may_be_recorded(trial: Trial, disk: Disk) -> bool:
    """Return whether a rolled back plug may stay on record until it is settled.

    It cannot be deleted while the disk is full. Or the intent was recorded,
    and the disk has only refused the sync that lets it outlive a power cut.
    """
    return trial.stays or disk.writes[trial.number - 1] == "fsync ."


def _check_named(error: exception.OsAccError) -> None:
    assert isinstance(error, exception.StateUnavailable), repr(error)
    assert error.hint, repr(error)
    assert "/state" in error.message, repr(error)
