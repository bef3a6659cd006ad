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

"""The caller's side of the privileged helper.

Turns the helper's plain answers into typed errors, and holds deadlines on
calls whose helper may be stuck, killed or silent.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any

from oslo_config import cfg
from oslo_log import log
from oslo_privsep import comm, daemon

from os_acc import exception, privsep
from os_acc.objects.lease import Lease
from os_acc.objects.pci import PciAddress, PciFunction
from os_acc.privsep import binding, holders, sriov
from os_acc.privsep.outcome import Outcome, Result

LOG = log.getLogger(__name__)

# The helper's own deadline comes first, so that its answer can still arrive.
_ANSWER_SECONDS = 5.0


class StaleEpoch(exception.OsAccError):
    """The helper has seen a later operation on the device than this one.

    :ivar seen: the epoch that it has seen.
    """

    retryable = True

    def __init__(self, message: str, seen: int) -> None:
        super().__init__(message)
        self.seen = seen


_helpers: weakref.WeakSet[Helper] = weakref.WeakSet()


def _forget_parent() -> None:
    # A thread that the child does not have may have held the guard, or been
    # about to start what the child then waits for.
    for each in _helpers:
        each.forget_starts()


os.register_at_fork(after_in_child=_forget_parent)


class Helper:
    """Privileged steps as typed calls.

    :param write_timeout: seconds that the kernel gets for one round trip.
    """

    def __init__(self, write_timeout: float) -> None:
        self.write_timeout = write_timeout
        self.forget_starts()
        _helpers.add(self)

    def forget_starts(self) -> None:
        """Know of no start of a context: in a forked child there was none."""
        self._guard = threading.Lock()
        self._starts: dict[privsep.Context, futures.Future[None]] = {}

    def start(
        self,
        deadline: float,
        contexts: Sequence[privsep.Context] = (privsep.base, privsep.inspect),
    ) -> None:
        """Start these contexts, by ``time.monotonic()``'s deadline.

        :raises HelperUnavailable: they do not start, or not in time.
        """
        starts = [self._starting(each) for each in contexts]
        for start in starts:
            _await(start, deadline - time.monotonic())

    def take(self, lease: Lease, deadline: float) -> None:
        """Bind all functions of a lease to vfio-pci.

        :raises HostError: as the host refused it.
        """
        milliseconds = self._milliseconds(deadline)
        targets = tuple(
            (prior.address.parts, prior.identity.numbers) for prior in lease.prior
        )
        answers = self._call(
            privsep.base,
            binding.take,
            milliseconds,
            lease.iommu_group,
            targets,
            lease.epoch,
            milliseconds,
        )
        _judge(lease.members, answers)

    def give_back(
        self, lease: Lease, deadline: float, *, proven_free: bool = False
    ) -> None:
        """Return all functions of a lease to what they were bound to.

        :raises HostError: as the host refused it; DeviceInUse names holders.
        """
        milliseconds = self._milliseconds(deadline)
        targets = tuple(
            (
                prior.address.parts,
                prior.identity.numbers,
                prior.driver or "",
                prior.driver_override or "",
            )
            for prior in lease.prior
        )
        answers = self._call(
            privsep.base,
            binding.give_back,
            milliseconds,
            lease.iommu_group,
            targets,
            lease.epoch,
            milliseconds,
            proven_free,
        )
        outcomes = {Result(*answer).outcome for answer in answers}
        if outcomes & {Outcome.IN_USE, Outcome.UNSURE}:
            self.check_free(lease.members, deadline)
            if not proven_free:
                self.give_back(lease, deadline, proven_free=True)
                return
        _judge(lease.members, answers)

    def check_free(self, addresses: Sequence[PciAddress], deadline: float) -> None:
        """Make sure that no process holds one of these functions.

        :raises DeviceInUse: someone does, or even root's eyes cannot tell.
        """
        milliseconds = self._milliseconds(deadline)
        outcome, number, found = self._call(
            privsep.inspect,
            holders.holders,
            milliseconds,
            tuple(address.parts for address in addresses),
        )
        if outcome == Outcome.OK:
            return
        names = ", ".join(f"{command} (pid {pid})" for pid, command in found)
        raise exception.DeviceInUse(
            f"{addresses[0]} is held by {names or 'somebody who cannot be named'}",
            address=str(addresses[0]),
            errno=number,
            holders=tuple((pid, command) for pid, command in found),
        )

    def set_num_vfs(
        self, function: PciFunction, count: int, epoch: int, deadline: float
    ) -> None:
        """Give a PF this many VFs.

        :raises HostError: as the host refused it.
        """
        milliseconds = self._milliseconds(deadline)
        answer = self._call(
            privsep.base,
            sriov.set_num_vfs,
            milliseconds,
            function.address.parts,
            function.identity.numbers,
            count,
            epoch,
            milliseconds,
        )
        _judge((function.address,), (answer,))

    def _milliseconds(self, deadline: float) -> int:
        left = min(self.write_timeout, deadline - time.monotonic())
        if left <= 0:
            raise exception.DeviceStuck(
                "no time is left for the next privileged step",
                hint="the operation's own timeout has passed",
            )
        return max(1, int(left * 1000))

    def _call(
        self,
        context: privsep.Context,
        entrypoint: Callable[..., Any],
        milliseconds: int,
        *args: object,
    ) -> Any:
        seconds = milliseconds / 1000 + _ANSWER_SECONDS
        _await(self._starting(context), seconds)
        try:
            return entrypoint(*args, _wrap_timeout=seconds)
        except comm.PrivsepTimeout as error:
            raise exception.HelperLost(
                "the privileged helper does not answer",
                hint="what it was asked to do may still happen; try again",
            ) from error
        except (OSError, daemon.ProtocolError, daemon.FailedToDropPrivileges) as error:
            raise exception.HelperLost(
                f"the privileged helper ended during a call: {error}"
            ) from error

    def _starting(self, context: privsep.Context) -> futures.Future[None]:
        """The start of the context's helper: over, under way, or begun now.

        It runs in a thread of its own, which nobody has to wait for: sudo may
        ask for a password, and a helper may end before it answers.
        """
        with self._guard:
            start = self._starts.get(context)
            if start is None or (start.done() and not _runs(context)):
                start = self._starts[context] = futures.Future()
                threading.Thread(
                    target=_start, args=(context, start), daemon=True
                ).start()
            return start


def _runs(context: privsep.Context) -> bool:
    channel = context.channel
    return not context.client_mode or (channel is not None and channel.running)


def _start(context: privsep.Context, start: futures.Future[None]) -> None:
    try:
        if not _runs(context):
            if context.channel is not None:
                with contextlib.suppress(OSError):
                    context.stop()
                context.channel = None
            context.start()
            threading.Thread(
                target=_watch, args=(context.channel,), daemon=True
            ).start()
    # ValueError: a helper_command with a quotation mark that nobody closes.
    except (OSError, ValueError, cfg.Error, daemon.FailedToDropPrivileges) as error:
        failure = exception.HelperUnavailable(
            f"the privileged helper {context.pypath} does not start: {error}"
        )
        failure.__cause__ = error
        start.set_exception(failure)
    else:
        start.set_result(None)


def _watch(channel: comm.ClientChannel) -> None:
    """Tell those who wait for an answer that none will come any more.

    privsep's reader does so at the end of the stream. A helper that is killed
    before it has read what it was sent resets the connection instead: then
    the reader dies without a word, and the channel still counts as running.
    """
    channel.reader_thread.join()
    with channel.lock:
        channel.running = False
        for waiting in channel.outstanding_msgs.values():
            waiting.set_exception(OSError("the connection to the helper was reset"))


def _await(start: futures.Future[None], seconds: float) -> None:
    try:
        start.result(max(0.0, seconds))
    except futures.TimeoutError as error:
        raise exception.HelperUnavailable(
            "the privileged helper did not start in time"
        ) from error


def _judge(addresses: Sequence[PciAddress], answers: Sequence[Sequence[Any]]) -> None:
    results = [Result(*answer) for answer in answers]
    for address, result in zip(addresses, results, strict=False):
        # What was not tried says nothing of why.
        if result.outcome not in (Outcome.OK, Outcome.UNREACHED):
            raise _error(str(address), result)
    done = [result for result in results if result.outcome == Outcome.OK]
    if len(done) != len(addresses):
        raise exception.HelperLost("the privileged helper answered something else")


def _error(address: str, result: Result) -> exception.OsAccError:
    text = f"{address}: {result.step or 'the step'}"
    match result.outcome:
        case Outcome.GONE:
            return exception.DeviceGone(f"{address} has vanished from the host")
        case Outcome.CHANGED:
            return exception.DeviceChanged(
                f"{address}: {result.step} is now {result.observed}",
                hint="another device sits there now; look at 'os-acc device list'",
            )
        case Outcome.STALE:
            return StaleEpoch(
                f"{address}: a later operation came first", int(result.observed)
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
    return exception.HostStepFailed(
        f"{text}: {_reason(result)}", address=address, errno=result.errno
    )


def _reason(result: Result) -> str:
    if result.errno:
        return f"{errno.errorcode.get(result.errno, '?')}, {os.strerror(result.errno)}"
    return f"{result.outcome}, found {result.observed or 'nothing'}"
