# SPDX-License-Identifier: Apache-2.0

"""One failing read of a flow, and the checks after it."""

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

#: Refuses one read; takes the root, the number of the read and the errno. With the
#: root alone it refuses none.
Reader = Callable[..., AbstractContextManager[Reads]]
#: Checks the result of a flow against the errno of the refused read.
Check = Callable[[Told, int], None]


def record(stage: Stage, bench: TestHost, reader: Reader) -> int:
    """Return the number of reads of a flow without a fault."""
    with bench.installed():
        manager = None if stage.flow.starts else stage.flow.ready(bench)
        stage.flow.begin(bench)
        with reader(bench.root) as reads:
            result, _ = fault_trials.act(stage.flow, bench, manager)
    fault_trials.check_not_struck(stage.flow, result)
    assert reads.count, "the flow reads nothing"
    return reads.count


#: The process or the host has no descriptors or no memory left for the moment.
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR)


def strike(
    stage: Stage, bench: TestHost, *, reader: Reader, at: int, error: int, check: Check
) -> None:
    """Strike one read, and check everything."""
    flow = stage.flow
    with bench.installed():
        manager = None if flow.starts else flow.ready(bench)
        flow.begin(bench)
        with reader(bench.root, at, error) as reads:
            result, manager = fault_trials.act(flow, bench, manager)
        assert reads.count >= at, "the read is not there any more"
        # A missing value that the flow does not need is no failure.
        if result.text:
            check(result, error)
        else:
            flow.check_done(bench, manager)
        flow.check_always(bench, manager)
        leases = manager.store.leases()
        if error in EXHAUSTED:
            check_passes(result, leases)
        if flow.kind is Kind.TAKE and result.error is not None:
            assert leases == (), result
        taken = {str(address) for lease in leases for address in lease.members}
        exempt = {*taken, flow.makes_vfs}
        fault_trials.check_as_it_was(bench.kernel, stage.pristine, exempt)
        assert plug(manager, NEXT, flow.elsewhere)
        assert manager.unplug({"uuid": NEXT}) == 1
        fault_trials.check_not_given_twice(manager, flow)
        # This also ends the flow's own fault if it was not reached.
        bench.end_faults()
        fault_trials.put_in_order(stage, bench)


def check_passes(result: Told, leases: Iterable[Lease]) -> None:
    """Check that the error is retryable and no device is quarantined."""
    assert all(lease.state is not LeaseState.QUARANTINED for lease in leases), result
    why = result.error
    if isinstance(why, exception.DevicesUnreleased):
        ((_, why),) = why.unreleased
    assert why is None or why.retryable, repr(why)


def check_named(result: Told, error: int) -> None:
    """Check that the error names device and errno and is one of the host."""
    assert "0000:" in result.text, result
    # The attributes of a device that is being removed answer so.
    if error == errno.ENODEV and "has vanished" in result.text:
        return
    if result.error is None:
        assert errno.errorcode[error] in result.text, result
        return
    why: exception.OsAccError = result.error
    if isinstance(why, exception.DevicesUnreleased):
        ((_, why),) = why.unreleased
    assert isinstance(why, exception.HostError), repr(why)
    assert why.errno == error, repr(why)
