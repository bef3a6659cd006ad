# SPDX-License-Identifier: Apache-2.0

"""The latest capacity of the host, for callers that cannot wait.

Nova reads it in every claim, under a lock of its own. It is therefore kept in
memory, and a thread refreshes it.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection

from oslo_log import log

from os_acc import deadlines, exception
from os_acc.objects.device import Provider, functions_of
from os_acc.objects.lease import Lease
from os_acc.objects.mdev import DeviceAddress, function_of
from os_acc.objects.pci import PciAddress
from os_acc.objects.records import RecordedState
from os_acc.placement.capacity import Capacity, capacities

LOG = log.getLogger(__name__)

#: Seconds until a read starts a new scan. The default of Nova's own cycle
#: (``[DEFAULT] update_resources_interval``).
MAX_AGE = 60.0


class Snapshots:
    """The latest scan of the host, and the latest leases.

    Results are ordered by the start of their reading: a slow scan does not
    replace the result of one that started later.

    :param look: scans the host, and calls :meth:`note`.
    """

    def __init__(self, look: Callable[[], object]) -> None:
        self._look = look
        self._numbers = itertools.count(1)
        self._due = 0.0
        self._offered: tuple[int, Collection[Provider]] = (0, ())
        self._recorded = (0, RecordedState())
        self._newest: tuple[Capacity, ...] = ()
        self.forget()

    def forget(self) -> None:
        """Replace the locks; in a forked child no scan is running."""
        # A reader never waits for either lock.
        self._guard = threading.Lock()
        self._looking = threading.Lock()

    def begin(self) -> int:
        """Return the number of a reading that starts now."""
        return next(self._numbers)

    def note(
        self,
        began: int,
        recorded: RecordedState,
        offered: Collection[Provider] | None = None,
    ) -> None:
        """Keep a result, unless a newer one is known.

        :param began: the number from :meth:`begin`.
        :param offered: None if only the store was read.
        """
        with self._guard:
            if began > self._recorded[0]:
                self._recorded = (began, recorded)
            if offered is not None and began > self._offered[0]:
                self._offered = (began, offered)
                self._due = time.monotonic() + MAX_AGE
            self._newest = capacities(self._offered[1], self._recorded[1])

    def expire(self) -> None:
        """Make the next read start a scan."""
        self._due = 0.0

    def offers(self, leases: Collection[Lease]) -> bool:
        """Return whether the last scan found all devices of the leases."""
        functions = functions_of(self._offered[1])
        return all(functions.issuperset(lease.members) for lease in leases)

    def offered(self) -> tuple[Collection[Provider], frozenset[DeviceAddress]]:
        """Return the providers of the last scan, and what leases have taken."""
        return self._offered[1], self._recorded[1].taken

    def provider_of(self, address: DeviceAddress) -> str:
        """Return the UUID of the provider of a device in the last scan, or ''."""
        offering = (e.uuid for e in self._offered[1] if address in functions_of([e]))
        return next(offering, "")

    def functions(self) -> tuple[frozenset[PciAddress], frozenset[PciAddress]]:
        """Return the functions of free devices, and those of leased ones.

        They are those of the last scan. A parent with a free unit for a mediated device
        is among the first.
        """
        found, taken = functions_of(self._offered[1]), self._recorded[1].taken
        free = frozenset(filter(None, map(function_of, found - taken)))
        return free, frozenset(filter(None, map(function_of, found & taken)))

    def regions(self) -> set[str]:
        """Return the keys of the regions that the last scan found."""
        regions = (provider.device.region for provider in self._offered[1])
        return {region.key for region in regions if region is not None}

    def newest(self, unallocated: Collection[str] = ()) -> tuple[Capacity, ...]:
        """Return the latest capacity; start a scan if it is outdated.

        :param unallocated: as for :func:`.capacities`.
        """
        if time.monotonic() >= self._due:
            self._begin_look()
        if unallocated:
            return capacities(self._offered[1], self._recorded[1], unallocated)
        return self._newest

    def _begin_look(self) -> None:
        if not self._looking.acquire(blocking=False):
            # A scan that hangs is not started a second time.
            return
        self._due = time.monotonic() + MAX_AGE
        try:
            deadlines.begin(self._look_once)
        except exception.DeviceStuck as error:
            self._looking.release()
            LOG.warning("cannot start a thread to scan the host: %s", error)

    def refresh(self) -> None:
        """Scan the host; the detached thread has no caller, so failures are logged."""
        try:
            self._look()
        except Exception as error:
            LOG.warning(
                "cannot scan the host, the previous inventory remains published: %s",
                error,
                exc_info=not isinstance(error, exception.OsAccError),
            )

    def _look_once(self) -> None:
        try:
            self.refresh()
        finally:
            self._looking.release()
