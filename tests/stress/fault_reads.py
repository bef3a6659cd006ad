# SPDX-License-Identifier: Apache-2.0

"""One read of a flow that fails, and what has to be true of it."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from os_acc import exception
from os_acc.objects.lease import Lease, LeaseState
from os_acc.testing import TestHost
from tests.stress import fault_trials
from tests.stress.fault_flows import NEXT, Kind
from tests.stress.fault_trials import Stage, Told
from tests.stress.simulated_host import plug
from tests.stress.unreadable_attributes import Reads

#: Refuses one read: of a root, which one, and with what; none without more.
Reader = Callable[..., AbstractContextManager[Reads]]
#: What has to be told of an errno.
Check = Callable[[Told, int], None]


def record(stage: Stage, bench: TestHost, reader: Reader) -> int:
    """Return the number of reads of a flow without a fault."""
    with bench.installed():
        manager = None if stage.flow.starts else stage.flow.ready(bench)
        stage.flow.begin(bench)
        with reader(bench.root) as reads:
            told, _ = fault_trials.act(stage.flow, bench, manager)
    fault_trials.check_not_struck(stage.flow, told)
    assert reads.count, "the flow reads nothing"
    return reads.count


#: The process or the host has no descriptors or no memory left for the moment.
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)


def strike(
    stage: Stage, bench: TestHost, *, reader: Reader, at: int, error: int, check: Check
) -> None:
    """Strike one read, and look at everything."""
    flow = stage.flow
    with bench.installed():
        manager = None if flow.starts else flow.ready(bench)
        flow.begin(bench)
        with reader(bench.root, at, error) as reads:
            told, manager = fault_trials.act(flow, bench, manager)
        assert reads.count >= at, "the read is not there any more"
        # A missing value that the flow does not need is no failure.
        if told.text:
            check(told, error)
        else:
            flow.check_done(bench, manager)
        flow.check_always(bench, manager)
        leases = manager.store.leases()
        if error in EXHAUSTED:
            check_passes(told, leases)
        if flow.kind is Kind.TAKE and told.error is not None:
            assert leases == (), told
        taken = {str(address) for lease in leases for address in lease.members}
        exempt = {*taken, flow.makes_vfs}
        fault_trials.check_as_it_was(bench.kernel, stage.pristine, exempt)
        assert plug(manager, NEXT, flow.elsewhere)
        assert manager.unplug({"uuid": NEXT}) == 1
        fault_trials.check_not_given_twice(manager, flow)
        # The flow's own fault, too, where it was not reached.
        bench.end_faults()
        fault_trials.put_in_order(stage, bench)


def check_passes(told: Told, leases: Iterable[Lease]) -> None:
    """The same call may succeed later; no device is kept for an operator."""
    assert all(lease.state is not LeaseState.QUARANTINED for lease in leases), told
    why = told.error
    if isinstance(why, exception.DevicesUnreleased):
        ((_, why),) = why.unreleased
    assert why is None or why.retryable, repr(why)


def check_named(told: Told, error: int) -> None:
    """The device and the errno are named; the error is one of the host."""
    assert "0000:" in told.text, told
    # So answer the attributes of a device that is being removed.
    if error == errno.ENODEV and "has vanished" in told.text:
        return
    if told.error is None:
        assert errno.errorcode[error] in told.text, told
        return
    why: exception.OsAccError = told.error
    if isinstance(why, exception.DevicesUnreleased):
        ((_, why),) = why.unreleased
    assert isinstance(why, exception.HostError), repr(why)
    assert why.errno == error, repr(why)
