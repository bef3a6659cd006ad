# SPDX-License-Identifier: Apache-2.0

"""Answers of the privileged helper as typed errors."""

from __future__ import annotations

from os_acc import exception
from os_acc.helper import programming_errors
from os_acc.objects.epoch import AcceptedEpochs
from os_acc.privsep.outcome import CallResult, Outcome


class EpochRefused(exception.OsAccError):
    """The helper does not accept the epoch of this operation on the device.

    It has seen a later operation, or the epoch lies far ahead of the clock.

    :ivar address: the PCI address of the device.
    :ivar accepted: the epochs that it accepts.
    """

    retryable = True

    def __init__(self, message: str, address: str, accepted: AcceptedEpochs) -> None:
        super().__init__(message)
        self.address = address
        self.accepted = accepted


class DeviceClaimed(exception.NoDeviceAvailable):
    """The helper's own record has a function taken for another lease.

    :ivar lease: uuid of that lease; 'unreadable' where the record is damaged.
    """

    default_hint = (
        "no lease is on record for it: the store was lost or replaced. Find out who "
        "has it, then 'os-acc device adopt' or 'os-acc device release'"
    )

    def __init__(self, message: str, lease: str) -> None:
        super().__init__(message)
        self.lease = lease


def of_answer(address: str, result: CallResult) -> exception.OsAccError:
    """The error that an answer about a device stands for."""
    text = f"{address}: {result.step or 'the step'}"
    match result.outcome:
        case Outcome.GONE:
            return exception.DeviceGone(f"{address} has vanished from the host")
        case Outcome.CHANGED:
            return exception.DeviceChanged(
                f"{address}: {result.step} is now {result.observed}",
                hint="another device sits there now; look at 'os-acc device list'",
            )
        case Outcome.STALE | Outcome.AHEAD:
            why = (
                "a later operation came first"
                if result.outcome == Outcome.STALE
                else "the number of this operation is far ahead of the host's clock"
            )
            seen, limit = map(int, result.observed.split())
            return EpochRefused(
                f"{address}: {why}", address, AcceptedEpochs(seen, limit)
            )
        case Outcome.CLAIMED:
            return DeviceClaimed(
                f"{result.step} is taken for lease {result.observed}, says the "
                "privileged helper's record",
                result.observed,
            )
        case Outcome.DENIED:
            return exception.HostStepFailed(
                f"{address}: root's configuration does not allow this step",
                address=address,
                errno=result.errno,
                hint=programming_errors.DENIED_HINT,
            )
        case Outcome.IN_USE | Outcome.UNSURE:
            return exception.DeviceInUse(
                f"{address} is in use", address=address, errno=result.errno
            )
        case Outcome.STUCK:
            return exception.DeviceStuck(
                f"{address}: the kernel has not returned from a write",
                address=address,
                errno=result.errno,
            )
        case Outcome.BUSY:
            return exception.DeviceStuck(
                f"{address}: an earlier write has not ended",
                address=address,
                errno=result.errno,
            )
        case Outcome.NO_EFFECT if result.step == "child":
            # It may have got anywhere; what it held is free, so going on, or
            # back, can be tried again.
            return exception.HelperLost(
                f"{address}: the privileged helper's worker was killed",
                address=address,
            )
        case Outcome.FAILED:
            return exception.HostStepFailed(
                f"{address}: the privileged helper's worker raised {result.observed}",
                address=address,
                hint="this is a fault of os_acc: report it",
            )
        case Outcome.NO_EFFECT if result.step == "driver":
            return exception.BindRefused(
                f"{address} is with {result.observed or 'no driver'} after the probe",
                address=address,
                hint="the driver did not take the device; the kernel's log says why",
            )
    error = exception.HostStepFailed(
        f"{text}: {programming_errors.reason(result)}",
        address=address,
        errno=result.errno,
    )
    if result.step == "worker":
        # Its child could not be forked, or had no memory.
        error.set_exhausted()
    return error
