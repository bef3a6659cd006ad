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


"""Whatever a write meets, it is named, undone or recorded, and stops nobody.

Each flow is recorded once; then each of its writes is struck by each fault.
"""

from __future__ import annotations

import itertools
import os
import traceback

import pytest

from tests.stress import fault_flows, fault_trials
from tests.stress.fault_counts import Count, Counting
from tests.stress.fault_trials import Effect, Stage, Trial


@pytest.fixture(params=fault_flows.FLOWS)
def stage(request: pytest.FixtureRequest, place: str) -> Stage:
    flow = fault_flows.FLOWS[request.param]
    return fault_trials.stage_of(flow, os.path.join(place, "stage"))


def test_every_write_is_struck_by_every_fault(
    stage: Stage, place: str, counting: Counting
) -> None:
    recorded = stage.bench.copy(os.path.join(place, "recorded"))
    places = fault_trials.record(stage, recorded)
    assert places, "the flow writes nothing"
    pairs = list(itertools.product(places, Effect))
    troubles = []
    for number, (struck, effect) in enumerate(pairs):
        bench = stage.bench.copy(os.path.join(place, str(number)))
        try:
            fault_trials.attempt(stage, bench, struck, effect, Trial)
        except AssertionError:
            troubles.append(f"{effect} at {struck}:\n{traceback.format_exc()}")
        bench.remove()
    counting(
        Count(
            "faults at privileged writes",
            stage.flow.name,
            len(places),
            len(Effect),
            len(pairs),
            len(pairs) - len(troubles),
        )
    )
    assert not troubles, f"{len(troubles)} not survived, the first:\n{troubles[0]}"
