# SPDX-License-Identifier: Apache-2.0

"""The client of the privileged helper turns its answers into typed errors."""

import dataclasses
import errno
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from oslo_config import cfg
from oslo_privsep import daemon

from os_acc import exception, privsep
from os_acc.helper import client
from os_acc.objects.epoch import AcceptedEpochs
from os_acc.objects.lease import LeaseState, PriorBinding
from os_acc.objects.pci import PciAddress, PciIdentity
from os_acc.privsep import binding, holders, sriov
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.privsep.request import DEADLINE_LIMIT_MS
from os_acc.testing.helper import privileged_here
from tests.expected_errors import raises
from tests.unit import leases, vendor_steps
from tests.unit.pci_addresses import function

FIRST, SECOND = (PciAddress(0, 0x17, 0, number) for number in range(2))
IDENTITY = PciIdentity(0x10DE, 0x2235, 0x10DE, 0x145A, 0xA1)
LEASE = leases.lease(
    FIRST,
    state=LeaseState.PREPARING,
    prior=tuple(
        PriorBinding(address, IDENTITY, driver, None)
        for address, driver in ((FIRST, "nouveau"), (SECOND, None))
    ),
    epoch=12,
)
PF = function(FIRST, identity=IDENTITY, driver="ice", total_vfs=8)


@pytest.fixture
def deadline() -> float:
    return time.monotonic() + 60


@pytest.fixture
def here():
    """Answer privileged calls in this process."""
    with privileged_here():
        yield client.Helper(write_timeout=30)


@pytest.fixture
def answer(monkeypatch):
    """Return a function that sets the answer of an entry point."""

    def with_this(module, name, result):
        calls = []

        def entry_point(*arguments):
            calls.append(arguments)
            return result

        monkeypatch.setattr(module, name, entry_point)
        return calls

    return with_this


OK = CallResult(Outcome.OK)


# -- arguments ---------------------------------------------------------------


def test_a_take_carries_numbers_alone(here, answer, deadline):
    calls = answer(binding, "take", (OK, OK))
    here.take([LEASE], deadline)
    ((group, targets, epoch, milliseconds, lease, *plugins),) = calls
    assert (lease, plugins) == (LEASE.uuid, ["", "", "", False])
    assert (group, epoch) == (7, 12)
    assert targets == (
        ((0, 0x17, 0, 0), IDENTITY.numbers, "vfio-pci", "", ""),
        ((0, 0x17, 0, 1), IDENTITY.numbers, "vfio-pci", "", ""),
    )
    assert 0 < milliseconds <= 30_000


def limit_of(call: Callable[[privsep.Step[Any]], object]) -> int:
    """Return the time limit in milliseconds with which a step is called."""
    limits: list[int] = []

    def entry(*arguments: Any) -> CallResult:
        # Behind the epoch of the lease, or behind the function of a health step.
        found = arguments.index(LEASE.epoch) + 1 if LEASE.epoch in arguments else 1
        limits.append(arguments[found])
        return CallResult(Outcome.OK, observed="null")

    call(dataclasses.replace(vendor_steps.process, context=privsep.base, entry=entry))
    (limit,) = limits
    return limit


def test_a_step_of_a_plugin_has_the_time_that_is_left(here):
    deadline = time.monotonic() + 400
    limit = limit_of(lambda step: here.run_step(step, LEASE, (), deadline))
    assert 1000 * here.write_timeout < limit <= 400_000


def test_a_step_of_a_plugin_has_no_more_time_than_the_helper_accepts(here):
    limit = limit_of(lambda step: here.run_step(step, LEASE, (), math.inf))
    assert limit == DEADLINE_LIMIT_MS


def test_a_health_step_and_a_call_of_the_librarys_own_have_the_write_timeout(
    here, answer
):
    assert limit_of(lambda step: here.read_health(step, PF, math.inf)) == 30_000
    calls = answer(binding, "take", (OK, OK))
    here.take([LEASE], math.inf)
    assert calls[0][3] == 30_000


def test_what_is_to_be_restored_goes_along(here, answer, deadline):
    calls = answer(binding, "give_back", (OK, OK))
    here.give_back(LEASE, deadline)
    ((_group, targets, _epoch, _milliseconds, proven_free, lease, *_),) = calls
    assert lease == LEASE.uuid
    assert [target[2:] for target in targets] == [("nouveau", "", ""), ("", "", "")]
    assert proven_free is False


def test_no_call_is_made_where_no_time_is_left(here, answer):
    calls = answer(binding, "take", (OK, OK))
    with pytest.raises(exception.DeviceStuck, match="no time is left"):
        here.take([LEASE], time.monotonic() - 1)
    assert calls == []


# -- answers -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "error", "text"),
    [
        (CallResult(Outcome.INVALID, errno.EINVAL), exception.HostStepFailed, "EINVAL"),
        (CallResult(Outcome.GONE, errno.ENODEV), exception.DeviceGone, "vanished"),
        (
            CallResult(Outcome.CHANGED, 0, "identity", "10ee:5000"),
            exception.DeviceChanged,
            "identity is now 10ee:5000",
        ),
        (CallResult(Outcome.STALE, 0, "lock", "99 999"), client.EpochRefused, "later"),
        (
            CallResult(Outcome.AHEAD, 0, "lock", "9 99"),
            client.EpochRefused,
            "far ahead",
        ),
        (CallResult(Outcome.IN_USE, errno.EBUSY), exception.DeviceInUse, "in use"),
        (
            CallResult(Outcome.IN_PARTS, errno.EBUSY, "0000:17:00.1", "3 VFs"),
            client.DeviceInParts,
            "0000:17:00.1 cannot be given to a guest: it has 3 VFs",
        ),
        (CallResult(Outcome.UNSURE, errno.EACCES), exception.DeviceInUse, "in use"),
        (CallResult(Outcome.STUCK, errno.ETIMEDOUT), exception.DeviceStuck, "returned"),
        (CallResult(Outcome.BUSY, errno.EBUSY), exception.DeviceStuck, "earlier write"),
        (
            CallResult(Outcome.REFUSED, errno.EIO, "unbind"),
            exception.StepReason.REFUSED,
            "unbind: EIO",
        ),
        (
            CallResult(Outcome.NO_EFFECT, 0, "driver", "nouveau"),
            exception.StepReason.BIND,
            "is bound to nouveau",
        ),
        (
            CallResult(Outcome.NO_EFFECT, 0, "driver"),
            exception.StepReason.BIND,
            "no driver",
        ),
        (
            CallResult(Outcome.NO_EFFECT, 0, "driver_override", "x"),
            exception.StepReason.REFUSED,
            "driver_override: no-effect, found x",
        ),
        (
            CallResult(Outcome.NO_EFFECT, 0, "child", "ended"),
            exception.HelperLost,
            "worker was killed",
        ),
        (
            CallResult(Outcome.FAILED, 0, "worker", "KeyError: 'x'"),
            exception.StepReason.REFUSED,
            "worker raised KeyError: 'x'",
        ),
    ],
)
def test_each_outcome_is_one_typed_error(here, answer, deadline, result, error, text):
    answer(binding, "take", (OK, result))
    with raises(error, match=text) as caught:
        here.take([LEASE], deadline)
    assert str(SECOND) in str(caught.value)
    if isinstance(caught.value, exception.HostError):
        assert caught.value.address == str(SECOND)


@pytest.mark.parametrize("outcome", [Outcome.STALE, Outcome.AHEAD])
def test_an_epoch_is_refused_with_those_that_are_accepted(
    here, answer, deadline, outcome
):
    answer(binding, "take", (CallResult(outcome, 0, "lock", "99 999"),) * 2)
    with pytest.raises(client.EpochRefused) as caught:
        here.take([LEASE], deadline)
    assert caught.value.accepted == AcceptedEpochs(99, 999)
    assert caught.value.address == str(LEASE.address)
    assert caught.value.retryable


@pytest.mark.parametrize("answers", [(), (OK,), (OK, OK, OK)])
def test_an_answer_for_something_else_is_none(here, answer, deadline, answers):
    answer(binding, "take", answers)
    with pytest.raises(exception.HelperLost, match="unexpected answer"):
        here.take([LEASE], deadline)


def test_the_function_that_failed_is_named_not_one_that_was_left_out(
    here, answer, deadline
):
    answer(binding, "take", (CallResult(Outcome.UNREACHED), CallResult(Outcome.GONE)))
    with pytest.raises(exception.DeviceGone, match=str(LEASE.members[1])):
        here.take([LEASE], deadline)


def test_a_pf_that_refuses_is_named(here, answer, deadline):
    answer(
        sriov, "set_num_vfs", CallResult(Outcome.REFUSED, errno.ERANGE, "sriov_numvfs")
    )
    with raises(exception.StepReason.REFUSED, match="ERANGE"):
        here.change(PF, 1, deadline, sriov.set_num_vfs, 9)


# -- holders -----------------------------------------------------------------


def test_holders_are_named(here, answer, deadline):
    answer(holders, "holders", ("in-use", errno.EBUSY, ((1, "qemu"), (2, "dd"))))
    with pytest.raises(exception.DeviceInUse, match=r"qemu \(pid 1\), dd") as caught:
        here.check_free([FIRST], deadline)
    assert caught.value.holders == ((1, "qemu"), (2, "dd"))
    assert caught.value.errno == errno.EBUSY


def test_where_nobody_can_tell_the_device_counts_as_used(here, answer, deadline):
    answer(holders, "holders", ("unsure", errno.EACCES, ()))
    with pytest.raises(exception.DeviceInUse, match="unidentified process"):
        here.check_free([FIRST], deadline)


@pytest.mark.parametrize("outcome", [Outcome.IN_USE, Outcome.UNSURE])
def test_the_context_that_may_look_decides(
    here, answer, deadline, monkeypatch, outcome
):
    proofs = []

    def give_back(group, targets, epoch, milliseconds, proven, *_):
        proofs.append(proven)
        return (OK, OK) if proven else (CallResult(outcome, errno.EACCES),) * 2

    monkeypatch.setattr(binding, "give_back", give_back)
    answer(holders, "holders", ("ok", 0, ()))
    here.give_back(LEASE, deadline)
    assert proofs == [False, True]


def test_it_is_not_given_back_where_somebody_is_found(here, answer, deadline):
    calls = answer(
        binding, "give_back", (CallResult(Outcome.UNSURE, errno.EACCES),) * 2
    )
    answer(holders, "holders", ("in-use", errno.EBUSY, ((1, "qemu"),)))
    with pytest.raises(exception.DeviceInUse, match="qemu"):
        here.give_back(LEASE, deadline)
    assert len(calls) == 1


# -- an unavailable helper ---------------------------------------------------


@pytest.fixture
def no_helper(monkeypatch):
    """Return a function that replaces the start of each helper."""

    def start_with(action):
        for context in (privsep.base, privsep.inspect):
            monkeypatch.setattr(context, "channel", None)
            monkeypatch.setattr(context, "connect", action)

    return start_with


def raising(error):
    def start():
        raise error

    return start


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "no sudo"),
        PermissionError(errno.EACCES, "denied"),
        daemon.FailedToDropPrivileges("exited non-zero (1)"),
        ValueError("No closing quotation"),
        cfg.ConfigFileValueError("no number"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_helper_that_does_not_start_is_told_with_its_cause(
    no_helper, deadline, error
):
    no_helper(raising(error))
    with pytest.raises(exception.HelperUnavailable) as caught:
        client.Helper(30).start(deadline)
    assert str(error) in str(caught.value)
    assert "os_acc.privsep.base" in str(caught.value)
    assert "os-acc check" in caught.value.hint
    assert caught.value.__cause__ is error


def test_a_helper_that_never_comes_keeps_nobody_waiting(no_helper):
    gate = threading.Event()

    def start():
        gate.wait()
        raise OSError("too late")

    no_helper(start)
    hands = client.Helper(30)
    try:
        with pytest.raises(exception.HelperUnavailable, match="in time"):
            hands.start(time.monotonic() + 0.05)
        # Another caller waits for the same start, not behind it.
        with pytest.raises(exception.HelperUnavailable, match="in time"):
            hands.start(time.monotonic() + 0.05)
    finally:
        gate.set()


def test_a_forked_child_waits_for_no_start_of_its_parent(no_helper):
    gate = threading.Event()

    def start():
        gate.wait()
        raise OSError("too late")

    no_helper(start)
    hands = client.Helper(30)
    with pytest.raises(exception.HelperUnavailable, match="in time"):
        hands.start(time.monotonic() + 0.05)
    # Another thread holds the guard at the moment of the fork.
    privsep.base.guard.acquire()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        no_helper(raising(OSError("of its own")))
        try:
            hands.start(time.monotonic() + 60)
        except exception.HelperUnavailable as error:
            os._exit(0 if "of its own" in str(error) else 2)
        finally:
            os._exit(1)
    privsep.base.guard.release()
    gate.set()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_start_that_failed_is_tried_again(no_helper, deadline):
    attempts = []

    def start():
        attempts.append(len(attempts))
        raise OSError("not yet")

    no_helper(start)
    hands = client.Helper(30)
    for count in (1, 2):
        with pytest.raises(exception.HelperUnavailable, match="not yet"):
            hands.start(deadline, [privsep.base])
        assert len(attempts) == count


def test_a_call_without_a_helper_is_no_call(no_helper, answer, deadline):
    no_helper(raising(OSError("no sudo")))
    calls = answer(binding, "take", (OK, OK))
    with pytest.raises(exception.HelperUnavailable, match="no sudo"):
        client.Helper(30).take([LEASE], deadline)
    assert calls == []
