# SPDX-License-Identifier: Apache-2.0

"""Retries releases that failed, in threads for which no operation waits.

A lease stays ``releasing`` after a failure that can pass. Each attempt takes
the consumer's lock only if it is free, and each consumer has a thread of its
own: a device that is stuck delays no other. A retry never takes a device from
a process that holds it; it is the same release that an unplug does.
"""

from __future__ import annotations

import threading
import time
from concurrent import futures
from typing import Final

from oslo_log import log

from os_acc import deadlines, exception, forks
from os_acc.attach import lifecycle
from os_acc.inventory.catalog import Catalog

LOG = log.getLogger(__name__)

#: The most attempts at one time: half of the threads of a helper, so that plugs
#: always find one.
_MOST: Final = 32


class Retrier:
    """Settles what is unfinished: at intervals, and when a plug asks for it.

    It also settles what another process, a command that was killed for example,
    has left. Nothing is retried before :meth:`start`.

    :param interval: seconds between two rounds.
    :param seconds: the time of one attempt; an unplug of the same consumer
        waits for it.
    """

    def __init__(
        self,
        life: lifecycle.Lifecycle,
        catalog: Catalog,
        interval: float,
        seconds: float,
    ) -> None:
        self._life = life
        self._catalog = catalog
        self._interval = interval
        self._seconds = seconds
        self._is_wanted = False
        self.forget_parent()
        forks.track(self)

    def forget_parent(self) -> None:
        """In a forked child: know of no thread. The next plug begins one."""
        self._asked = threading.Event()
        self._guard = threading.Lock()
        self._thread: futures.Future[None] | None = None
        self._under_way: dict[str, futures.Future[None]] = {}
        self._last_begun = ""

    def start(self) -> None:
        """Begin the rounds.

        Without a thread there is a line in the log, and the next plug tries again.
        """
        self._is_wanted = True
        with self._guard:
            if self._thread is not None:
                return
            try:
                self._thread = deadlines.begin(self._run)
            except exception.DeviceStuck as error:
                LOG.warning("failed releases are not retried yet: %s", error)

    def stop(self, seconds: float = 0.0) -> bool:
        """Let the thread end; whether it has in so many seconds."""
        self._is_wanted = False
        self._asked.set()
        return self._thread is None or bool(futures.wait([self._thread], seconds).done)

    def kick(self) -> None:
        """Begin a round now, without waiting for it; nothing before :meth:`start`."""
        if not self._is_wanted:
            return
        if self._thread is None:
            self.start()
        self._asked.set()

    def retry(self) -> list[futures.Future[None]]:
        """Begin an attempt for each unfinished consumer; return those under way.

        A consumer whose last attempt has not ended gets no second one. Where there
        are too many consumers for one round, the next round continues after the
        last one that was begun.
        """
        try:
            due = self._life.unfinished(time.monotonic() + self._seconds)
        except exception.OsAccError as error:
            LOG.warning("failed releases are retried later: %s", error)
            due = []
        with self._guard:
            under_way = {k: v for k, v in self._under_way.items() if not v.done()}
            # ``False`` sorts first: the consumers after the last one begun.
            for consumer in sorted(
                due, key=lambda each: (each <= self._last_begun, each)
            ):
                if consumer in under_way:
                    continue
                if sum(not each.done() for each in under_way.values()) >= _MOST:
                    break
                try:
                    under_way[consumer] = deadlines.begin(self._settle, consumer)
                except exception.DeviceStuck as error:
                    LOG.warning("failed releases are retried later: %s", error)
                    break
                self._last_begun = consumer
            self._under_way = under_way
            return list(under_way.values())

    def _run(self) -> None:
        while self._is_wanted:
            if self._asked.wait(self._interval):
                self._asked.clear()
            if not self._is_wanted:
                return
            try:
                self.retry()
            except Exception:
                # Nothing reads what would end this thread.
                LOG.exception("failed releases are retried later")

    def _settle(self, consumer: str) -> None:
        deadline = time.monotonic() + self._seconds
        try:
            released = self._life.settle_if_free(consumer, deadline)
            if not released.done and not released.failed:
                return
            for lease in released.done:
                LOG.info("%s is released by a retry", lease.address)
            self._catalog.count_released(released.done, bool(released.failed), deadline)
        except Exception:
            # Nothing reads what would end this thread.
            LOG.exception("the retry for consumer %s failed", consumer)
