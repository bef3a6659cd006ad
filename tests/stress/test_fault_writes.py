# SPDX-License-Identifier: Apache-2.0

"""A fault of any write is named, undone or recorded, and stops no other consumer.

Each flow is recorded once; then each of its writes is struck by each fault.
"""

from __future__ import annotations

import functools
import itertools
import os

import pytest

from tests.stress import fault_flows, fault_trials
from tests.stress.fault_trials import Effect, Stage, Trial


@pytest.fixture(params=fault_flows.FLOWS)
def stage(request: pytest.FixtureRequest, place: str) -> Stage:
    flow = fault_flows.FLOWS[request.param]
    return fault_trials.stage_of(flow, os.path.join(place, "stage"))


def test_every_write_is_struck_by_every_fault(stage, place, counting):
    recorded = stage.bench.copy(os.path.join(place, "recorded"))
    places = fault_trials.record(stage, recorded)
    assert places, "the flow writes nothing"
    attempts = {
        f"{effect} at {struck}": functools.partial(
            fault_trials.attempt, stage, place=struck, effect=effect, kind=Trial
        )
        for struck, effect in itertools.product(places, Effect)
    }
    fault_trials.survive(
        stage, place, counting, "faults at privileged writes", attempts, len(Effect)
    )
