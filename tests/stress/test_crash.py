# SPDX-License-Identifier: Apache-2.0

"""A kill at any touch of disk or host loses nothing.

Each flow is recorded once, then killed at each recorded point in each possible way;
then the library starts again, and host and store are checked.
"""

from __future__ import annotations

import dataclasses
import os
import traceback
from importlib import metadata

import pytest
from stevedore import ExtensionManager

from os_acc import exception
from os_acc.plugins import loader
from os_acc.privsep import worker
from os_acc.testing import Snapshot, TestHost
from tests.stress import (
    created_flows,
    family_flows,
    flows,
    in_process_calls,
    kills,
    plugin_flows,
    processes,
    recovery_checks,
    region_flows,
    request_flows,
)
from tests.stress.flows import BYSTANDERS, Flow
from tests.stress.kills import Trial, Way
from tests.stress.simulated_host import simulated_host

#: The recorded points of each flow are divided among so many shares.
SHARES = 18

FLOWS = {
    **flows.FLOWS,
    **request_flows.FLOWS,
    **region_flows.FLOWS,
    **plugin_flows.FLOWS,
    **created_flows.FLOWS,
    **family_flows.FLOWS,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Stage:
    """A flow, and the host that is ready for it.

    :ivar pristine: the host before anything was plugged.
    :ivar writes: number of writes that reached the kernel before the flow.
    """

    flow: Flow
    bench: TestHost
    pristine: Snapshot
    writes: int


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the plugins of :mod:`.plugin_flows` beside those of os_acc."""
    own = metadata.entry_points(group=loader.NAMESPACE)
    monkeypatch.setitem(
        ExtensionManager.ENTRY_POINT_CACHE,
        loader.NAMESPACE,
        [*own, *plugin_flows.INSTALLED],
    )


@pytest.fixture(params=FLOWS)
def stage(request: pytest.FixtureRequest, place: str) -> Stage:
    flow = FLOWS[request.param]
    bench = simulated_host(
        os.path.join(place, "stage"),
        flows.host(flow.more),
        device_spec=list(flow.device_spec),
        enabled_plugins=list(flow.plugins),
        groups=flow.groups,
    )
    pristine = bench.kernel.snapshot()
    processes.result(lambda: flow.prepare(bench))
    return Stage(flow, bench, pristine, len(bench.kernel.writes()))


def test_every_point_is_survived(stage, place, note_kills, share):
    recorded = _record(stage, os.path.join(place, "recorded"))
    # Calls that run side by side are recorded in another order each time.
    selected = share.select(sorted(recorded), SHARES)
    points = {point: recorded[point] for point in selected}
    trials = [trial for point in points for trial in kills.trials_at(point)]

    def attempt(trial: Trial) -> str | None:
        name = f"{os.getpid()}-{trials.index(trial)}"
        bench = stage.bench.copy(os.path.join(place, name))
        try:
            _survive(stage, bench, trial)
        except Exception:  # noqa: BLE001 - reported at the end
            # A process that waits would keep others waiting for its locks.
            kills.go_on(bench)
            return f"{trial} at {points[trial.point]}:\n{traceback.format_exc()}"
        bench.remove()
        return None

    troubles = processes.share_out(trials, attempt)
    note_kills(stage.flow.name, points, trials, len(troubles))
    assert not troubles, f"{len(troubles)} not survived, the first:\n{troubles[0]}"


def _record(stage: Stage, directory: str) -> dict[kills.Point, str]:
    bench = stage.bench.copy(directory)

    def run() -> None:
        for _ in stage.flow.act(bench):
            kills.record(bench)

    processes.result(run)
    _look(stage, bench)
    return kills.recorded(bench)


def _survive(stage: Stage, bench: TestHost, trial: Trial) -> None:
    def run() -> str:
        # A client whose worker is killed lives on and gets an error.
        try:
            for _ in stage.flow.act(bench):
                kills.install(bench, trial)
        except (exception.HelperLost, exception.DevicesUnreleased):
            return traceback.format_exc()
        return ""

    ended = processes.call(run)
    assert not ended.trouble, ended.trouble
    passed = kills.recorded(bench)
    assert kills.was_reached(bench), f"not reached: {ended}, passed: {passed}"
    assert ended.killed == (trial.way is not Way.WORKER)
    if trial.way is Way.ORPHAN:
        _leave_alone(bench, trial.point.device)
        kills.go_on(bench)
    elif trial.way is Way.QUEUED:
        _overtake(stage, bench)
    _look(stage, bench)


def _leave_alone(bench: TestHost, device: str) -> None:
    """Recover while a worker of the dead client is still at work."""

    def recover() -> None:
        worker._LOCK_SECONDS = 0.02
        count = len(bench.kernel.writes())
        leases = bench.start_here().store.leases()
        kernel = bench.kernel
        writes = kernel.writes()[count:]
        recovery_checks.check_left_alone(kernel, leases, device, writes)

    processes.result(recover)


def _overtake(stage: Stage, bench: TestHost) -> None:
    """Recover, then let a call of the dead client begin."""

    def recover() -> None:
        manager = bench.start_here()
        recovery_checks.check_recovered(
            stage.flow, manager, bench.kernel, stage.pristine
        )

    processes.result(recover)
    kills.go_on(bench)


def _look(stage: Stage, bench: TestHost) -> None:
    """Start again, check, go on, unplug all, check."""
    flow = stage.flow
    with bench.installed():
        manager, kernel = bench.start(), bench.kernel
        recovery_checks.check_untouched(flow, kernel.writes()[stage.writes :])
        recovery_checks.check_recovered(flow, manager, kernel, stage.pristine)
        with in_process_calls.for_workers():
            flow.resume(bench, manager)
            recovery_checks.check_bound(manager.store.leases(), kernel)
            kernel.let_go(BYSTANDERS)
            recovery_checks.unplug_all(manager)
        recovery_checks.check_restored(bench, stage.pristine)
