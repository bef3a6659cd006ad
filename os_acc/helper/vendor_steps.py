# SPDX-License-Identifier: Apache-2.0

"""Calls of vendors' privileged steps; see :mod:`os_acc.privsep.vendor_steps`."""

from __future__ import annotations

import errno
import functools
from collections.abc import Iterable
from concurrent import futures
from typing import Any

from oslo_log import log

from os_acc import exception
from os_acc.helper import errors
from os_acc.helper.client import Helper
from os_acc.objects.lease import Lease
from os_acc.objects.region import Region
from os_acc.privsep import Context, Step, vendor_steps
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.privsep.pci_functions import HELD
from os_acc.privsep.step import StepPurpose

LOG = log.getLogger(__name__)


def begin(helper: Helper, contexts: Iterable[tuple[str, Context]]) -> None:
    """Begin the start of vendors' contexts.

    One that does not start is logged, and fails the steps of its plugin alone.

    :param contexts: each with the name of its plugin.
    """
    for name, context in contexts:
        note = functools.partial(_log_failure, name)
        helper.begin(context).over.add_done_callback(note)


def _log_failure(plugin: str, start: futures.Future[None]) -> None:
    if (error := start.exception()) is not None:
        LOG.error("%s; the privileged steps of plugin %s will fail", error, plugin)


def run(
    helper: Helper,
    step: Step[Any, *tuple[Any, ...]],
    arguments: tuple[object, ...],
    lease: Lease,
    deadline: float,
    region: Region | None = None,
    purpose: StepPurpose = StepPurpose.OTHER,
) -> Any:
    """Run a vendor's step on the device of a lease; return its value.

    :param region: the region that the plugin programs; None in other calls.
    :param purpose: the call of the plugin.
    :raises TypeError: the arguments do not match the parameters of the step.
    :raises HelperUnavailable: the helper of its context does not start.
    :raises HostError: the host refused it.
    """
    if step.is_health:
        raise TypeError(f"{step.name} is a health step, which the library runs")
    if not step.parameters.accept(arguments):
        raise TypeError(
            f"{step.name} is called with {exception.show(arguments)}, which does not "
            "match its parameters"
        )
    result = helper.run_step(step, lease, arguments, deadline, region, purpose)
    if result.step == HELD:
        # It names the holders.
        helper.check_unused(lease, deadline)
    if result.outcome != Outcome.OK:
        raise _error(step, str(lease.address), result)
    return vendor_steps.decode(result.observed)


def _error(
    step: Step[Any, *tuple[Any, ...]], address: str, result: CallResult
) -> exception.OsAccError:
    failed = functools.partial(exception.HostStepFailed, address=address)
    title = f"the privileged step {step.name}"
    match result.outcome:
        case Outcome.FAILED:
            return failed(
                f"{address}: {title} {result.observed}",
                hint="this is a defect of the plugin: report it to its vendor",
            )
        case Outcome.REFUSED if result.errno == errno.ESTALE:
            return exception.DeviceChanged(
                f"{address} {result.observed}",
                hint="move the drive back to its former slot, or unplug the instance",
            )
        case Outcome.REFUSED if result.errno == errno.EOPNOTSUPP:
            return failed(
                f"{address}: {result.observed or errors.reason(result)}",
                errno=result.errno,
                reason=exception.StepReason.UNSUITABLE,
            )
        case Outcome.REFUSED if result.step != "worker":
            detail = f": {result.observed}" if result.observed else ""
            return failed(
                f"{address}: {title} failed at {result.step or 'a call'}: "
                f"{errors.reason(result)}{detail}",
                errno=result.errno,
            )
        case Outcome.DENIED:
            # Without an error number: a plugin would take it for that of its step.
            return failed(
                f"{address}: root's configuration does not allow {title}",
                hint=errors.DENIED_HINT,
                reason=exception.StepReason.DENIED,
            )
    return errors.of_answer(address, result)
