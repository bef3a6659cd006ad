# SPDX-License-Identifier: Apache-2.0

"""The library survives failing reads, opens and locks of the privileged helper.

Before a write the helper reads the state, and looks for processes that hold the
device; after the write it reads the effect. It decides by each of these reads.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Mapping

import pytest

from os_acc.objects.lease import LeaseState
from tests.stress import fault_flows, fault_reads, fault_trials, unreadable_attributes
from tests.stress.fault_flows import NEXT, Flow
from tests.stress.fault_trials import Stage
from tests.stress.flows import GPU, by_name
from tests.stress.simulated_host import plug

FLOWS: Mapping[str, Flow] = by_name(
    fault_flows.TakeCard,
    fault_flows.GiveBackCard,
    fault_flows.NumVfs,
    fault_flows.NumVfsAgain,
)
ERRORS = (errno.EIO, errno.ENODEV, *fault_reads.EXHAUSTED)


@pytest.fixture(params=FLOWS)
def stage(request: pytest.FixtureRequest, place: str) -> Stage:
    flow = FLOWS[request.param]
    return fault_trials.stage_of(flow, os.path.join(place, "stage"))


@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
def test_every_read_may_fail(stage, place, counting, error):
    reader = unreadable_attributes.to_the_helper
    recorded = stage.bench.copy(os.path.join(place, "recorded"))
    reads = fault_reads.record(stage, recorded, reader)
    attempts = {
        f"{errno.errorcode[error]} at read {at}": functools.partial(
            fault_reads.strike,
            stage,
            reader=reader,
            at=at,
            error=error,
            check=fault_reads.check_named,
        )
        for at in range(1, reads + 1)
    }
    table = "faults at privileged reads"
    fault_trials.survive(stage, place, counting, table, attempts, 1)


# -- the lock -----------------------------------------------------------------


def a_directory(path: str) -> None:
    os.mkdir(path)


def a_link(path: str) -> None:
    os.symlink("elsewhere", path)


@pytest.fixture
def locks(stage: Stage) -> str:
    """Return the directory of the helper's locks, without any."""
    directory = os.path.join(stage.bench.root, "run/os_acc")
    os.makedirs(directory, exist_ok=True)
    for name in os.listdir(directory):
        if not name.endswith(".autoprobe"):
            os.unlink(os.path.join(directory, name))
    return directory


@pytest.mark.parametrize("obstacle", [a_directory, a_link])
def test_a_lock_that_cannot_be_opened_is_told(stage, locks, obstacle):
    flow, bench = stage.flow, stage.bench
    address = flow.makes_vfs or GPU
    path = os.path.join(locks, address)
    with bench.installed():
        manager = None if flow.starts else flow.ready(bench)
        obstacle(path)
        writes = len(bench.kernel.writes())
        result, manager = fault_trials.act(flow, bench, manager)
        assert address in result.text
        assert "lock" in result.text
        assert len(bench.kernel.writes()) == writes
        for lease in manager.store.leases():
            assert lease.state is LeaseState.QUARANTINED
        assert plug(manager, NEXT, flow.elsewhere)
        assert manager.unplug({"uuid": NEXT}) == 1
        os.rmdir(path) if os.path.isdir(path) else os.unlink(path)
        fault_trials.put_in_order(stage, bench)
