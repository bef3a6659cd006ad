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


"""What the privileged helper reads, opens and locks may fail as well.

Before it writes it reads what is there, and asks whether somebody holds it;
after it, whether it had the effect. Each of these decides.
"""

from __future__ import annotations

import errno
import itertools
import os
import traceback
from collections.abc import Callable, Mapping

import pytest

from os_acc import exception
from os_acc.objects.lease import LeaseState
from tests.stress import fault_flows, fault_trials, unreadable
from tests.stress.bench import Bench, plug
from tests.stress.fault_counts import Count, Counting
from tests.stress.fault_flows import Flow, Kind
from tests.stress.fault_trials import NEXT, Stage, Told
from tests.stress.flows import GPU

FLOWS: Mapping[str, Flow] = {
    flow.name: flow
    for flow in (
        fault_flows.TakeCard(),
        fault_flows.GiveBackCard(),
        fault_flows.NumVfs(),
        fault_flows.NumVfsAgain(),
    )
}
ERRORS = (errno.EIO, errno.ENODEV)


@pytest.fixture(params=FLOWS)
def stage(request: pytest.FixtureRequest, place: str) -> Stage:
    flow = FLOWS[request.param]
    return fault_trials.stage_of(flow, os.path.join(place, "stage"))


def test_every_read_may_fail(stage: Stage, place: str, counting: Counting) -> None:
    reads = _record(stage, stage.bench.copy(os.path.join(place, "recorded")))
    pairs = list(itertools.product(range(1, reads + 1), ERRORS))
    troubles = []
    for number, (at, error) in enumerate(pairs):
        bench = stage.bench.copy(os.path.join(place, str(number)))
        try:
            _strike(stage, bench, at, error)
        except AssertionError:
            troubles.append(f"{error} at read {at}:\n{traceback.format_exc()}")
        bench.remove()
    counting(
        Count(
            "faults at privileged reads",
            stage.flow.name,
            reads,
            len(ERRORS),
            len(pairs),
            len(pairs) - len(troubles),
        )
    )
    assert not troubles, f"{len(troubles)} not survived:\n" + "\n".join(troubles)


def _record(stage: Stage, bench: Bench) -> int:
    manager = None
    with bench.kernel.installed():
        if not stage.flow.starts:
            manager = stage.flow.ready(bench)
        with unreadable.to_the_helper(bench.root) as reads:
            told, _ = fault_trials.act(stage.flow, bench, manager)
    assert not told.text
    assert reads.count
    return reads.count


def _strike(stage: Stage, bench: Bench, at: int, error: int) -> None:
    flow = stage.flow
    with bench.kernel.installed():
        manager = None if flow.starts else flow.ready(bench)
        with unreadable.to_the_helper(bench.root, at, error) as reads:
            told, manager = fault_trials.act(flow, bench, manager)
        assert reads.count >= at, "the read is not there any more"
        if told.text:
            _check_named(told, error, at)
        else:
            flow.check_done(bench, manager)
        leases = manager.store.leases()
        if flow.kind is Kind.TAKE and told.error is not None:
            assert leases == (), told
        taken = {str(address) for lease in leases for address in lease.members}
        fault_trials.check_as_it_was(
            bench.kernel, stage.pristine, {*taken, flow.makes_vfs}
        )
        assert plug(manager, NEXT, flow.elsewhere)
        assert manager.unplug({"uuid": NEXT}) == 1
        fault_trials.check_not_given_twice(manager, flow)
        fault_trials.put_in_order(stage, bench)


def _check_named(told: Told, error: int, at: int) -> None:
    assert "0000:" in told.text, f"read {at}: {told}"
    # So answer the attributes of a device that is being removed.
    if error == errno.ENODEV and "has vanished" in told.text:
        return
    if told.error is None:
        assert errno.errorcode[error] in told.text, f"read {at}: {told}"
        return
    why: exception.OsAccError = told.error
    if isinstance(why, exception.DevicesUnreleased):
        ((_, why),) = why.unreleased
    assert isinstance(why, exception.HostError), f"read {at}: {why!r}"
    assert why.errno == error, f"read {at}: {why!r}"


# -- the lock -----------------------------------------------------------------


def a_directory(path: str) -> None:
    os.mkdir(path)


def a_link(path: str) -> None:
    os.symlink("elsewhere", path)


@pytest.fixture
def locks(stage: Stage) -> str:
    """Where the helper's locks are, with none of them left."""
    directory = os.path.join(stage.bench.root, "run/os_acc")
    os.makedirs(directory, exist_ok=True)
    for name in os.listdir(directory):
        if not name.endswith(".autoprobe"):
            os.unlink(os.path.join(directory, name))
    return directory


@pytest.mark.parametrize("obstacle", [a_directory, a_link])
def test_a_lock_that_cannot_be_opened_is_told(
    stage: Stage, locks: str, obstacle: Callable[[str], None]
) -> None:
    flow, bench = stage.flow, stage.bench
    address = flow.makes_vfs or GPU
    path = os.path.join(locks, address)
    with bench.kernel.installed():
        manager = None if flow.starts else flow.ready(bench)
        obstacle(path)
        writes = len(bench.kernel.writes())
        told, manager = fault_trials.act(flow, bench, manager)
        assert address in told.text
        assert "lock" in told.text
        assert len(bench.kernel.writes()) == writes
        for lease in manager.store.leases():
            assert lease.state is LeaseState.QUARANTINED
        assert plug(manager, NEXT, flow.elsewhere)
        assert manager.unplug({"uuid": NEXT}) == 1
        os.rmdir(path) if os.path.isdir(path) else os.unlink(path)
        fault_trials.put_in_order(stage, bench)
