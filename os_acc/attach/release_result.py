# SPDX-License-Identifier: Apache-2.0

"""The result of a release of several leases, and the new state of failed ones."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence

from oslo_log import log

from os_acc import exception
from os_acc.helper import client
from os_acc.objects.lease import Lease, LeaseState
from os_acc.store import AlreadyLeased, Store

LOG = log.getLogger(__name__)

#: Causes that can pass without an operator: the lease stays unfinished, and its
#: release is retried. The manual lists them (doc/source/admin/operations.rst).
_WAITS = (
    exception.DeviceInUse,
    exception.DeviceStuck,
    exception.HelperLost,
    exception.HelperUnavailable,
    exception.LockTimeout,
    exception.StateUnavailable,
    client.EpochRefused,
)
#: Causes that can pass only if their ``retryable`` says that a resource ran out.
_MAY_PASS = (exception.HostStepFailed, exception.PluginFailed)


@dataclasses.dataclass(frozen=True, slots=True)
class ReleaseResult:
    """The result of a release.

    :ivar done: the leases that were released; some of the devices may have to be erased
        before they are free.
    :ivar failed: the other leases, as recorded now, each with its error.
    """

    done: tuple[Lease, ...]
    failed: tuple[tuple[Lease, exception.OsAccError], ...]

    def failure(self) -> exception.DevicesUnreleased:
        """Return the error for the failed leases; its cause is the first error."""
        consumers = " and ".join(sorted({lease.consumer for lease, _ in self.failed}))
        addresses = exception.some([str(lease.address) for lease, _ in self.failed], 4)
        reasons = "; ".join(str(error) for _, error in self.failed)
        ways = [
            f"os-acc device release {lease.address}"
            for lease, _ in self.failed
            if lease.state is LeaseState.QUARANTINED
        ]
        error = exception.DevicesUnreleased(
            f"cannot release {addresses} of {consumers}: {reasons}",
            released=[str(lease.address) for lease in self.done],
            unreleased=[(str(lease.address), why) for lease, why in self.failed],
            hint=f"repair the cause, then run: {'; '.join(ways)}"
            if ways
            else "the service retries the release; unplug again to retry now",
        )
        error.__cause__ = self.failed[0][1]
        return error


def record_failures(
    failed: Sequence[tuple[Lease, exception.OsAccError]], store: Store
) -> tuple[tuple[Lease, exception.OsAccError], ...]:
    """Record and log new causes; a lasting cause quarantines the lease.

    If the cause can pass, the lease keeps its state, and its release is retried.
    """
    changed, news = [], []
    for lease, error in failed:
        state = lease.state if is_transient(error) else LeaseState.QUARANTINED
        new = dataclasses.replace(lease, state=state, reason=str(error))
        changed.append((new, error))
        if new != lease:
            news.append(new)
    for lease in news:
        if lease.erasure and lease.state is LeaseState.ERASING:
            text, level = "cannot erase %s after instance %s yet: %s", logging.INFO
        elif lease.erasure:
            text, level = (
                "%s is quarantined: it is not erased after instance %s: %s",
                logging.ERROR,
            )
        elif lease.state is LeaseState.QUARANTINED:
            text, level = "%s of instance %s is quarantined: %s", logging.ERROR
        else:
            text, level = "cannot release %s of instance %s yet: %s", logging.INFO
        LOG.log(level, text, lease.address, lease.consumer_title, lease.reason)
    written = {lease.uuid: lease for lease in store.replace(news)} if news else {}
    return tuple((written.get(each.uuid, each), error) for each, error in changed)


def is_transient(error: exception.OsAccError) -> bool:
    """Return whether a release that failed for this cause is retried."""
    return isinstance(error, _WAITS) or (
        isinstance(error, _MAY_PASS) and error.retryable
    )


def is_refused_by_store(error: exception.OsAccError) -> bool:
    """Return whether the store lacks space, or has another lease of the device."""
    if isinstance(error, exception.StateUnavailable):
        return error.reason is not exception.StateReason.UNUSABLE
    return isinstance(error, AlreadyLeased)
