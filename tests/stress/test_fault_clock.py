# SPDX-License-Identifier: Apache-2.0

"""A clock that jumps by years changes nothing: no step asks for the time of day.

Deadlines use the monotonic clock; times that are recorded for people, and the store's
numbers, tolerate any time of day.
"""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Callable, Iterator

import pytest

from os_acc import service
from os_acc.store.leases import Store
from tests.stress import fault_flows, fault_trials
from tests.stress.fault_flows import Flow, Kind
from tests.stress.fault_trials import Stage

_YEAR = 365 * 86400.0
#: The successive readings of the clock, in years from now.
JUMPS = {
    "to and fro": (0.0, 30.0, -20.0, 5.0, -50.0, 200.0),
    "ever back": tuple(-year / 4 for year in range(200)),
    "ever on": tuple(year / 4 for year in range(200)),
}


def jumping(years: tuple[float, ...]) -> Callable[[], float]:
    """Return a clock that shows another time at each reading."""
    start, jumps = time.time(), itertools.cycle(years)
    return lambda: max(0.0, start + next(jumps) * _YEAR)


@pytest.fixture(params=JUMPS)
def _clock(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], float]:
    now = jumping(JUMPS[request.param])
    monkeypatch.setattr(time, "time", now)
    monkeypatch.setattr(time, "time_ns", lambda: int(now() * 1e9))
    # Its default is the clock from before the patch.
    opened = functools.partial(Store.open, clock=time.time_ns)
    monkeypatch.setattr(service.Store, "open", opened)
    return now


@pytest.fixture(params=fault_flows.FLOWS)
def flow(request: pytest.FixtureRequest) -> Flow:
    return fault_flows.FLOWS[request.param]


@pytest.fixture
def stage(flow: Flow, place: str, _clock: object) -> Iterator[Stage]:
    stage = fault_trials.stage_of(flow, os.path.join(place, "stage"))
    with stage.bench.installed():
        yield stage


def test_every_flow_does_its_work_under_a_clock_that_jumps(stage):
    flow, bench = stage.flow, stage.bench
    manager = None if flow.starts else flow.ready(bench)
    flow.begin(bench)
    result, manager = fault_trials.act(flow, bench, manager)
    assert not result.text
    flow.check_done(bench, manager)
    epochs = [lease.epoch for lease in manager.store.leases()]
    assert manager.store.next_epoch() > max(epochs, default=0)
    assert flow.kind is not Kind.GIVE_BACK or not epochs
    assert len(manager.store.events(100)) > 0 or flow.makes_vfs
    fault_trials.put_in_order(stage, bench)


def test_a_store_that_is_lost_while_the_clock_goes_back_catches_up(place, monkeypatch):
    """The host has seen later numbers than the new store gives out."""
    stage = fault_trials.stage_of(fault_flows.TakeCard(), os.path.join(place, "stage"))
    bench = stage.bench
    with bench.installed():
        fault_trials.put_in_order(stage, bench)
        os.unlink(os.path.join(bench.directory, "state", "os_acc.sqlite"))
        past = functools.partial(Store.open, clock=lambda: 10**18)
        monkeypatch.setattr(service.Store, "open", past)
        fault_trials.put_in_order(stage, bench)
