# SPDX-License-Identifier: Apache-2.0

"""A host that changes at any step, by another card or another boot, is restored.

Each flow is recorded once; then, before each of its steps, a function is
exchanged for another one at its address, or the power is cut.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping

import pytest

from os_acc import exception
from os_acc.objects.lease import LeaseState
from os_acc.testing import TestHost
from tests.stress import fault_flows, fault_trials, processes, recovery_checks
from tests.stress.fault_flows import NEXT, Flow
from tests.stress.fault_steps import Steps, kill_all
from tests.stress.fault_trials import Stage
from tests.stress.flows import AUDIO, GPU, by_name
from tests.stress.result_tables import Count, Counting
from tests.stress.simulated_host import plug, unfinished

#: The ids of the replacement: a card of another vendor.
ANOTHER = (0x1002, 0x73BF)

FLOWS: Mapping[str, Flow] = by_name(
    fault_flows.TakeCard,
    fault_flows.GiveBackCard,
    fault_flows.Reboot,
    fault_flows.Replay,
    fault_flows.SettleAtPlug,
    fault_flows.ReleaseQuarantined,
)


@pytest.fixture(params=FLOWS)
def stage(request: pytest.FixtureRequest, place: str) -> Stage:
    return fault_trials.stage_of(FLOWS[request.param], os.path.join(place, "stage"))


def test_a_card_may_be_exchanged_at_any_step(stage, place, counting):
    count = _record(stage, stage.bench.copy(os.path.join(place, "recorded")))
    attempts = {
        f"step {number}, {address}": functools.partial(
            _exchange, stage, number=number, address=address
        )
        for number in range(1, count + 1)
        for address in (GPU, AUDIO)
    }
    survive(stage, place, counting, "a card exchanged", attempts, count)


def test_the_power_may_be_cut_at_any_step(stage, place, counting):
    count = _record(stage, stage.bench.copy(os.path.join(place, "recorded")))
    attempts = {
        f"step {each}": functools.partial(_cut, stage, number=each)
        for each in range(1, count + 1)
    }
    survive(stage, place, counting, "a power cut", attempts, count)


def survive(
    stage: Stage,
    place: str,
    counting: Counting,
    what: str,
    attempts: Mapping[str, Callable[[TestHost], None]],
    steps: int,
) -> None:
    """Run each attempt on a copy, in a process of its own."""
    troubles, tried = [], len(attempts)
    for number, (name, attempt) in enumerate(attempts.items()):
        bench = stage.bench.copy(os.path.join(place, str(number)))
        if why := processes.call(functools.partial(attempt, bench)).why:
            troubles.append(f"{name}:\n{why}")
        bench.remove()
    passed = tried - len(troubles)
    counting(Count(what, stage.flow.name, steps, tried // steps, tried, passed))
    assert not troubles, f"{len(troubles)} not survived:\n" + "\n".join(troubles)


def _record(stage: Stage, bench: TestHost) -> int:
    steps = Steps(bench.root)
    assert processes.result(lambda: _act(stage.flow, bench, steps)) is None
    assert steps.count
    return steps.count


def _act(flow: Flow, bench: TestHost, steps: Steps) -> exception.OsAccError | None:
    bench.install()
    manager = None if flow.starts else flow.ready(bench)
    try:
        with steps.watched():
            if manager is None:
                bench.start()
            else:
                flow.act(manager)
    except exception.OsAccError as error:
        return error
    return None


# -- another card -------------------------------------------------------------


def _exchange(stage: Stage, bench: TestHost, number: int, address: str) -> None:
    flow, kernel = stage.flow, bench.kernel
    steps = Steps(bench.root, number, lambda: kernel.swap(address, ANOTHER))
    error = _act(flow, bench, steps)
    assert steps.count >= number, "the step is not there any more"
    manager = bench.start()
    if error is not None:
        _check_named(error)
    for lease in manager.store.leases():
        ids = {str(each.address): each.identity.vendor for each in lease.prior}
        if lease.state is LeaseState.HELD and ids[address] == ANOTHER[0]:
            # The card was exchanged before it was selected.
            manager.plug({"uuid": lease.consumer}, None, None)
            recovery_checks.check_bound([lease], kernel)
            continue
        with pytest.raises(exception.OsAccError) as caught:
            manager.plug({"uuid": lease.consumer}, None, None)
        _check_named(caught.value)
    assert plug(manager, NEXT, flow.elsewhere)
    assert manager.unplug({"uuid": NEXT}) == 1
    fault_trials.check_not_given_twice(manager, flow)
    recovery_checks.unplug_all(manager)
    assert kernel.snapshot() == stage.pristine, (error, kernel.snapshot())
    assert plug(manager, NEXT, GPU)
    assert manager.unplug({"uuid": NEXT}) == 1
    assert kernel.snapshot() == stage.pristine


def _check_named(error: exception.OsAccError) -> None:
    message = "\n".join((str(error), *getattr(error, "__notes__", ())))
    # Another card is another provider: the requested one is gone.
    is_gone = isinstance(error, exception.DeviceGone | exception.NoDeviceAvailable)
    assert GPU in message or AUDIO in message or is_gone, repr(error)


# -- another boot -------------------------------------------------------------


def _cut(stage: Stage, bench: TestHost, number: int) -> None:
    """Check that leases of an earlier boot are made ready again, and others dropped."""
    flow, kernel = stage.flow, bench.kernel
    steps = Steps(bench.root, number, kill_all)
    assert processes.call(lambda: _act(flow, bench, steps)).killed
    kernel.reboot()
    count = len(kernel.writes())
    manager = bench.start_here()
    assert kernel.writes()[count:] == [], "a fresh boot was written to"
    assert kernel.snapshot() == stage.pristine
    leases = manager.store.leases()
    assert unfinished(leases) == []
    held = [lease for lease in leases if lease.state is LeaseState.HELD]
    for consumer in {lease.consumer for lease in held}:
        manager.plug({"uuid": consumer}, None, None)
    recovery_checks.check_bound(held, kernel)
    fault_trials.put_in_order(stage, bench)
