# SPDX-License-Identifier: Apache-2.0

"""The newest that is known of the host, for callers that cannot wait.

Nova asks for it in every claim, under a lock of its own. So it is kept in
memory, and looking at the host again is left to a thread.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection

from oslo_log import log

from os_acc import deadlines, exception
from os_acc.objects.device import Provider
from os_acc.objects.lease import Lease, RecordedState
from os_acc.placement.capacity import Capacity, capacities

LOG = log.getLogger(__name__)

#: Seconds after which whoever asks begins a new look. Nova's own cycle, as it
#: is by default (``[DEFAULT] update_resources_interval``).
MAX_AGE = 60.0


class Snapshots:
    """Keeps what was seen last, of the host and of the leases.

    What is noted is put in order by when its reading began: a slow look that
    ends late never replaces what a later one has seen.

    :param look: looks at the host, and notes what it sees here.
    """

    def __init__(self, look: Callable[[], object]) -> None:
        self._look = look
        self._numbers = itertools.count(1)
        self._due = 0.0
        self._offered: tuple[int, Collection[Provider]] = (0, ())
        self._standing = (0, RecordedState())
        self._newest: tuple[Capacity, ...] = ()
        self.forget()

    def forget(self) -> None:
        """Know of no look that is under way: in a forked child there is none."""
        # Neither is ever waited for by whoever asks.
        self._guard = threading.Lock()
        self._looking = threading.Lock()

    def begin(self) -> int:
        """The number of a reading that begins now."""
        return next(self._numbers)

    def note(
        self,
        began: int,
        standing: RecordedState,
        offered: Collection[Provider] | None = None,
    ) -> None:
        """Keep what was read, unless newer is known.

        :param began: from :meth:`begin`.
        :param offered: None where only the store was read.
        """
        with self._guard:
            if began > self._standing[0]:
                self._standing = (began, standing)
            if offered is not None and began > self._offered[0]:
                self._offered = (began, offered)
                self._due = time.monotonic() + MAX_AGE
            self._newest = capacities(self._offered[1], self._standing[1])

    def expire(self) -> None:
        """Let whoever asks next begin a new look."""
        self._due = 0.0

    def offers(self, leases: Collection[Lease]) -> bool:
        """Whether the devices of these leases were there when last looked at."""
        there = {
            address
            for provider in self._offered[1]
            for handle in provider.device.handles
            for address in handle.members
        }
        return all(there.issuperset(lease.members) for lease in leases)

    def newest(self) -> tuple[Capacity, ...]:
        """What was seen last; a new look begins if that is too long ago."""
        if time.monotonic() >= self._due:
            self._begin_look()
        return self._newest

    def _begin_look(self) -> None:
        if not self._looking.acquire(blocking=False):
            # One that hangs stays the only one.
            return
        self._due = time.monotonic() + MAX_AGE
        try:
            deadlines.begin(self._look_once)
        except exception.DeviceStuck as error:
            self._looking.release()
            LOG.warning("no thread can look at the host: %s", error)

    def refresh(self) -> None:
        """Look now, in a thread that nobody waits for: a failure is logged."""
        try:
            self._look()
        except Exception as error:
            LOG.warning(
                "the host cannot be looked at, Placement is told what was seen "
                "before: %s",
                error,
                exc_info=not isinstance(error, exception.OsAccError),
            )

    def _look_once(self) -> None:
        try:
            self.refresh()
        finally:
            self._looking.release()
