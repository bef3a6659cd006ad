# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Whatever the host refuses, nobody has a region that was not read back.

Each write and each read of a flow that programs a region, or moves its port,
is struck, as those of other flows are.
"""

from __future__ import annotations

import errno
import itertools
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

import pytest

from os_acc import exception
from tests.stress import fault_regions, fault_trials, unreadable
from tests.stress.bench import Bench, plug
from tests.stress.fault_counts import Count, Counting
from tests.stress.fault_flows import NEXT, Kind
from tests.stress.fault_trials import Effect, Place, Stage, Told, Trial
from tests.stress.flows import DFL
from tests.stress.unreadable import Reads

#: Of the helper, by what programs a region or moves a port; of the service, by
#: all that it knows of the card.
READINGS = [
    *(
        (flow.name, "the helper's", error)
        for flow in (
            fault_regions.Program(),
            fault_regions.ProgramAnew(),
            fault_regions.ProgramVf(),
            fault_regions.NumVfs(),
            fault_regions.PortsBack(),
        )
        for error in (errno.EIO, errno.ENODEV)
    ),
    (fault_regions.Program.name, "the service's", errno.EIO),
]
#: Whose reads are struck, and how.
READERS: Mapping[str, Callable[..., AbstractContextManager[Reads]]] = {
    "the helper's": unreadable.to_the_helper,
    "the service's": unreadable.to_the_service,
}
_IOCTLS = ("program", "release", "assign")


def stage_of(name: str, place: str) -> Stage:
    return fault_trials.stage_of(
        fault_regions.FLOWS[name], os.path.join(place, "stage")
    )


class RegionTrial(Trial):
    """A fault at a write, or at an ioctl."""

    def _check_named(self, told: Told) -> None:
        if self.place.attribute not in _IOCTLS:
            super()._check_named(told)
            return
        assert DFL in told.text, told
        if self.place.attribute == "assign" and self.effect is Effect.ENODEV:
            # So answers a card that counts more ports than it has.
            return
        if self.flow.fails:
            assert "nor has the host its ports back" in told.text, told
        if self.effect is Effect.EBUSY:
            assert "in use" in told.text, told
        elif isinstance(self.effect.value, int):
            assert self.effect.name in told.text, told
        if told.error is not None:
            expected: tuple[type[exception.OsAccError], ...] = {
                Effect.EBUSY: (exception.DeviceInUse,),
                Effect.HANG: (exception.DeviceStuck,),
                Effect.NOTHING: (
                    exception.FunctionMismatch,
                    exception.ProgrammingFailed,
                ),
            }.get(self.effect, (exception.ProgrammingFailed,))
            assert isinstance(told.error, expected), repr(told.error)

    def _is_of_struck(self, names: list[str]) -> bool:
        # A VF's port is programmed through its card.
        return self.place.attribute in _IOCTLS or super()._is_of_struck(names)


def survive(
    stage: Stage,
    place: str,
    counting: Counting,
    table: str,
    attempts: Sequence[tuple[str, Callable[[Bench], None]]],
    faults: int,
) -> None:
    """Try each on a copy of the host."""
    troubles = []
    for number, (name, attempt) in enumerate(attempts):
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


@pytest.mark.parametrize("flow", fault_regions.FLOWS)
def test_every_write_is_struck_by_every_fault(
    flow: str, place: str, counting: Counting
) -> None:
    stage = stage_of(flow, place)
    places = fault_trials.record(
        stage, stage.bench.copy(os.path.join(place, "recorded"))
    )
    assert places, "the flow writes nothing"

    def attempt(struck: Place, effect: Effect) -> Callable[[Bench], None]:
        return lambda bench: fault_trials.attempt(
            stage, bench, struck, effect, RegionTrial
        )

    attempts = [
        (f"{effect} at {struck}", attempt(struck, effect))
        for struck, effect in itertools.product(places, Effect)
    ]
    survive(
        stage, place, counting, "faults at writes for a region", attempts, len(Effect)
    )


@pytest.mark.parametrize(("flow", "whose", "error"), READINGS)
def test_every_read_may_fail(
    place: str, counting: Counting, flow: str, whose: str, error: int
) -> None:
    """Of the helper, which has root's power, and of the service itself."""
    stage = stage_of(flow, place)
    reads = _reads(stage, stage.bench.copy(os.path.join(place, "recorded")), whose)

    def attempt(at: int) -> Callable[[Bench], None]:
        return lambda bench: _strike(stage, bench, whose, at, error)

    attempts = [
        (f"{errno.errorcode[error]} at read {at}", attempt(at))
        for at in range(1, reads + 1)
    ]
    survive(stage, place, counting, f"{whose} reads for a region", attempts, 1)


def _reads(stage: Stage, bench: Bench, whose: str) -> int:
    with bench.kernel.installed():
        manager = None if stage.flow.starts else stage.flow.ready(bench)
        stage.flow.begin(bench)
        with READERS[whose](bench.root) as reads:
            fault_trials.act(stage.flow, bench, manager)
    assert reads.count
    return reads.count


def _strike(stage: Stage, bench: Bench, whose: str, at: int, error: int) -> None:
    flow = stage.flow
    with bench.kernel.installed():
        manager = None if flow.starts else flow.ready(bench)
        flow.begin(bench)
        with READERS[whose](bench.root, at, error) as reads:
            told, manager = fault_trials.act(flow, bench, manager)
        assert reads.count >= at, "the read is not there any more"
        # What is not there, or of no use to the flow, is no failure.
        if told.text:
            assert isinstance(told.error, exception.OsAccError | None)
        else:
            flow.check_done(bench, manager)
        flow.check_always(bench, manager)
        leases = manager.store.leases()
        if flow.kind is Kind.TAKE and told.error is not None:
            assert leases == (), told
        taken = {str(address) for lease in leases for address in lease.members}
        exempt = {*taken, flow.makes_vfs}
        fault_trials.check_as_it_was(bench.kernel, stage.pristine, exempt)
        assert plug(manager, NEXT, flow.elsewhere)
        assert manager.unplug({"uuid": NEXT}) == 1
        fault_trials.check_not_given_twice(manager, flow)
        # The flow's own fault, too, where it was not reached.
        fault_trials.end(bench)
        fault_trials.put_in_order(stage, bench)
