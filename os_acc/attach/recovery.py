# SPDX-License-Identifier: Apache-2.0

"""Recovery: settle the leases that a crash or a failure has left unfinished.

It happens when the service starts, when an operation of the consumer begins, and in
threads for which no operation waits.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from oslo_log import log

from os_acc import deadlines, exception
from os_acc.attach import Services, lifecycle
from os_acc.attach.release_result import ReleaseResult
from os_acc.inventory.catalog import Catalog
from os_acc.objects.lease import Lease, LeaseState
from os_acc.store.locks import consumer_lock

LOG = log.getLogger(__name__)


class Recovery:
    """Settle consumers: roll plugs back, and continue the releases that have begun."""

    def __init__(
        self, services: Services, life: lifecycle.Lifecycle, catalog: Catalog
    ) -> None:
        self._store = services.store
        self._locks = services.locks
        self._life = life
        self._catalog = catalog

    def replay(self, deadline: float) -> None:
        """Settle each consumer with unfinished leases, unless its lock is held."""

        def settle(consumer: str) -> None:
            for lease, error in self.settle_if_free(consumer, deadline).failed:
                title = lease.consumer_title
                LOG.error("%s stays leased to %s: %s", lease.address, title, error)

        deadlines.side_by_side(self.unfinished(deadline), settle)

    def unfinished(self, deadline: float) -> list[str]:
        """Return the consumers with unfinished leases, sorted."""
        leases = self._store.until(deadline).leases()
        return sorted({lease.consumer for lease in leases if lease.is_unfinished})

    def settle_if_free(self, consumer: str, deadline: float) -> ReleaseResult:
        """Settle a consumer, unless an operation on it is in progress.

        Errors are logged: one bad record does not stop the others (CVE-2022-37394).
        """
        try:
            with self._locks.try_hold([consumer_lock(consumer)]) as is_held:
                if is_held:
                    leases = self._store.until(deadline).leases(consumer)
                    return self._settle(leases, deadline)
                LOG.debug("an operation on consumer %s is in progress", consumer)
        except exception.OsAccError as error:
            LOG.error("cannot settle consumer %s: %s", consumer, error)
        return ReleaseResult((), ())

    def settled(
        self, consumer: str, leases: Sequence[Lease], deadline: float
    ) -> tuple[Lease, ...]:
        """Settle a consumer; return the leases that it holds, in the order of a plug.

        :param leases: of the consumer, as recorded; the caller holds its lock.
        :raises OsAccError: an unfinished lease cannot be released now.
        """
        released = self._settle(leases, deadline)
        # No count is needed before the raise: a plug that fails recounts the leases.
        for lease, error in released.failed:
            # A guest does not wait for a device that was replaced.
            if not lease.is_spare:
                raise error
        if released.done or released.failed:
            both = (*leases, *released.done)
            self._catalog.count_released(both, bool(released.failed), deadline)
            leases = self._store.until(deadline).leases(consumer)
        held = [lease for lease in leases if lease.state is LeaseState.HELD]
        return tuple(sorted(held, key=lambda each: each.group))

    def _settle(self, leases: Sequence[Lease], deadline: float) -> ReleaseResult:
        unfinished = [lease for lease in leases if lease.is_unfinished]
        if not unfinished:
            return ReleaseResult((), ())
        # The log already has the failure that a retry repeats.
        is_new = not all(lease.has_failed_release for lease in unfinished)
        LOG.log(
            logging.WARNING if is_new else logging.DEBUG,
            "settling %d unfinished lease(s) of consumer %s",
            len(unfinished),
            unfinished[0].consumer_title,
        )
        return self._life.release(unfinished, deadline)
