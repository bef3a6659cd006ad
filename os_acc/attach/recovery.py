# SPDX-License-Identifier: Apache-2.0

"""Recovery: settle the leases that a crash or a failure has left unfinished.

It happens when the service starts, when an operation of the consumer begins, and in
threads for which no operation waits. The same threads continue erasures and program
released regions.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Final

from oslo_log import log

from os_acc import conf, deadlines, exception
from os_acc.attach import Services, lifecycle, region_operations
from os_acc.attach.release_result import ReleaseResult
from os_acc.inventory.catalog import Catalog
from os_acc.objects.lease import Lease, LeaseState
from os_acc.store import state_files
from os_acc.store.locks import consumer_lock

LOG = log.getLogger(__name__)

#: Maximum number of concurrent attempts: half of the helper's threads, so that plugs
#: always find a free one.
_MOST: Final = 32
#: Seconds between two calls of a plugin that erases a device, at most.
_ERASURE_PAUSE: Final = 5.0


@dataclasses.dataclass(eq=False, repr=False)
class Recovery:
    """Settle consumers: roll plugs back, and continue the releases that have begun."""

    _services: Services
    _life: lifecycle.Lifecycle
    _catalog: Catalog

    def replay(self, deadline: float) -> None:
        """Settle each consumer with unfinished leases, unless its lock is held."""

        def settle(consumer: str) -> None:
            for lease, error in self.settle_if_free(consumer, deadline).failed:
                title = lease.consumer_title
                LOG.error("%s stays leased to %s: %s", lease.address, title, error)

        deadlines.side_by_side(self.unfinished(deadline), settle)

    def unfinished(self, deadline: float) -> list[str]:
        """Return the consumers with unfinished leases, sorted."""
        leases = self._services.store.until(deadline).leases()
        return sorted({lease.consumer for lease in leases if lease.is_unfinished})

    def settle_if_free(self, consumer: str, deadline: float) -> ReleaseResult:
        """Settle a consumer, unless an operation on it is in progress.

        Errors are logged: one bad record does not stop the others (CVE-2022-37394).
        """
        try:
            with self._services.locks.try_hold([consumer_lock(consumer)]) as is_held:
                if is_held:
                    leases = self._services.store.until(deadline).leases(consumer)
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
            leases = self._services.store.until(deadline).leases(consumer)
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


@dataclasses.dataclass(eq=False, repr=False)
class Retrier:
    """Settle consumers in threads, at intervals and on request of a plug.

    Leases that another process left unfinished are settled as well, for example those
    of a killed command. Each attempt takes the consumer's lock only if it is free, and
    each consumer has a thread of its own: a stuck device delays no other. The same
    rounds program unverified regions with their recorded images, if the operator has
    switched that on (``reprogram_at_release``). While devices are being erased
    (:mod:`os_acc.attach.erasure`), further rounds continue the erasures alone. Nothing
    is retried before :meth:`start`.
    """

    _recovery: Recovery
    _life: lifecycle.Lifecycle
    _catalog: Catalog
    _regions: region_operations.RegionOperations
    _settings: conf.Settings

    def __post_init__(self) -> None:
        # An unplug of the same consumer waits for the attempt.
        self._seconds = self._settings.write_timeout
        self._is_started = False
        # An earlier service may have begun an erasure.
        self._is_erasing = True
        self.forget_parent()
        deadlines.reset_after_fork(self)

    def forget_parent(self) -> None:
        """In a forked child, forget the threads; the next plug starts one."""
        self._asked = threading.Event()
        self._guard = threading.Lock()
        self._thread: futures.Future[None] | None = None
        self._attempts: dict[str, futures.Future[None]] = {}
        self._last = ""

    def start(self) -> None:
        """Start the thread; if that fails, log it, and the next plug tries again."""
        self._is_started = True
        with self._guard:
            if self._thread is not None:
                return
            try:
                self._thread = deadlines.begin(self._run)
            except exception.DeviceStuck as error:
                LOG.warning("cannot start the retries of releases yet: %s", error)

    def stop(self, seconds: float = 0.0) -> bool:
        """Ask the thread to end; return whether it ends in this many seconds."""
        self._is_started = False
        self._asked.set()
        return self._thread is None or bool(futures.wait([self._thread], seconds).done)

    def retry_now(self) -> None:
        """Request a round now, without waiting for it; no-op before :meth:`start`."""
        if not self._is_started:
            return
        if self._thread is None:
            self.start()
        self._asked.set()

    def retry(self) -> list[futures.Future[None]]:
        """Start an attempt for each unfinished consumer; return the running ones.

        Do the same for each region to program, and each device to erase. Each has at
        most one attempt at a time. If there are too many for one round, the next round
        continues after the last one started.
        """
        deadline = time.monotonic() + self._seconds
        return self._begin(self._erasures(deadline) | self._due(deadline))

    def continue_erasures(self) -> list[futures.Future[None]]:
        """Do as :meth:`retry` for the devices to erase alone."""
        return self._begin(self._erasures(time.monotonic() + self._seconds))

    def _begin(
        self, due: dict[str, Callable[[str], None]]
    ) -> list[futures.Future[None]]:
        """Start attempts that do not run yet; return the running ones."""
        with self._guard:
            attempts = {k: v for k, v in self._attempts.items() if not v.done()}
            # ``False`` sorts first: those after the last one started.
            for name in sorted(due, key=lambda each: (each <= self._last, each)):
                if name in attempts:
                    continue
                if sum(not each.done() for each in attempts.values()) >= _MOST:
                    break
                try:
                    attempts[name] = deadlines.begin(due[name], name)
                except exception.DeviceStuck as error:
                    LOG.warning("cannot retry releases now, will retry: %s", error)
                    break
                self._last = name
            self._attempts = attempts
            return list(attempts.values())

    def _erasures(self, deadline: float) -> dict[str, Callable[[str], None]]:
        try:
            due = self._life.eraser.due(deadline)
        except exception.OsAccError as error:
            LOG.warning("cannot erase devices now, will retry: %s", error)
            return {}
        self._is_erasing = bool(due)
        return dict.fromkeys(due, self._erase)

    def _due(self, deadline: float) -> dict[str, Callable[[str], None]]:
        """Return the attempts that are due, by consumer or key of a region."""
        try:
            consumers = self._recovery.unfinished(deadline)
        except exception.OsAccError as error:
            LOG.warning("cannot retry releases now, will retry: %s", error)
            return {}
        regions = self._regions.due(deadline)
        return dict.fromkeys(consumers, self._settle) | dict.fromkeys(
            regions, self._program
        )

    def _run(self) -> None:
        due = time.monotonic() + self._settings.release_retry_interval
        while self._is_started:
            pause = max(0.0, due - time.monotonic())
            if self._is_erasing:
                pause = min(pause, _ERASURE_PAUSE)
            if self._asked.wait(pause):
                self._asked.clear()
                due = 0.0
            if not self._is_started:
                return
            erasures_only = time.monotonic() < due
            if not erasures_only:
                due = time.monotonic() + self._settings.release_retry_interval
            with self._reported("cannot retry releases now, will retry"):
                if erasures_only:
                    self.continue_erasures()
                else:
                    self.retry()

    @contextlib.contextmanager
    def _reported(self, text: str, *arguments: str) -> Iterator[None]:
        """Log and count an unforeseen error of a block: no thread must end by it."""
        try:
            yield
        except Exception:
            LOG.exception(text, *arguments)
            state_files.count_error(self._settings.state_path)

    def _erase(self, uuid: str) -> None:
        deadline = time.monotonic() + self._seconds
        with self._reported("cannot continue the erasure of lease %s", uuid):
            try:
                if self._life.eraser.advance(uuid, deadline) is None:
                    self._catalog.recount(deadline)
            except exception.OsAccError as error:
                # The lease and the log have the reason.
                LOG.debug("the erasure of lease %s does not continue: %s", uuid, error)

    def _settle(self, consumer: str) -> None:
        deadline = time.monotonic() + self._seconds
        with self._reported("cannot retry the releases of consumer %s", consumer):
            released = self._recovery.settle_if_free(consumer, deadline)
            if not released.done and not released.failed:
                return
            for lease in released.done:
                LOG.info(
                    "a retry has released %s of instance %s",
                    lease.address,
                    lease.consumer_title,
                )
            self._catalog.count_released(released.done, bool(released.failed), deadline)

    def _program(self, key: str) -> None:
        with self._reported("cannot program region %s again", key):
            self._regions.restore(key, time.monotonic() + self._settings.plug_timeout)
