# SPDX-License-Identifier: Apache-2.0

"""Monitor of kernel events, which scans the host again after changes.

A thread of the service that called ``initialize()``. Its scans update only the
published inventory; a plug scans the host itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent import futures
from types import MappingProxyType
from typing import Final

from oslo_log import log

from os_acc import deadlines, exception
from os_acc.host.uevents import ErrorRecovery, Monitor, Uevent
from os_acc.objects.pci import PciAddress

LOG = log.getLogger(__name__)

#: Seconds without an event until a change counts as complete: 64 VFs, or the
#: hotplug of a card, cause hundreds of events.
QUIET: Final = 0.5
#: Seconds until a scan starts although events keep coming.
RESTLESS: Final = 5.0
#: Longest time in seconds that the thread takes to notice its end.
_STEP: Final = 1.0
_FAULTS: Final = {
    ErrorRecovery.BEGUN: "is recovering from a PCIe error",
    ErrorRecovery.FAILED: "has not recovered from a PCIe error",
}


class _ReadFaults:
    """The faults of one kind of readings.

    A fault counts when it is read twice in succession: a reading may coincide with a
    reset. The first reading of a service counts at once.
    """

    def __init__(self) -> None:
        self.faults: Mapping[PciAddress, str] = MappingProxyType({})
        self._last: Mapping[PciAddress, str] | None = None

    def note(
        self, found: Mapping[PciAddress, str], certain: Collection[PciAddress] = ()
    ) -> bool:
        """Replace the faults that were read before; return whether they have changed.

        Only one thread may call this. Faults of ``certain`` functions count at once.
        """
        before, last, self._last = self.faults, self._last, found
        now = {
            address: fault
            for address, fault in found.items()
            if last is None or address in last or address in certain
        }
        self.faults = MappingProxyType(now)
        for address, fault in sorted(now.items() - before.items()):
            LOG.warning("%s %s, so it is not offered", address, fault)
        for address in sorted(before.keys() - now.keys()):
            LOG.info("no fault of %s is read any more", address)
        return now != before


class FaultTracker:
    """Faults of functions: those that the kernel has reported, and those just read.

    Reported ones are kept for the lifetime of the process: the kernel reports them
    once.

    :ivar readings: what any user can read.
    :ivar steps: what health steps have read.
    """

    def __init__(self) -> None:
        self._faults: Mapping[PciAddress, str] = MappingProxyType({})
        self.readings, self.steps = _ReadFaults(), _ReadFaults()

    @property
    def faults(self) -> Mapping[PciAddress, str]:
        """The fault of each faulty function."""
        return {**self.steps.faults, **self.readings.faults, **self._faults}

    def note(self, event: Uevent) -> None:
        """Record an event. Only one thread may call this; any thread may read."""
        if not event.action:
            self._clear_recoveries()
        if event.address is None:
            return
        if event.recovery is not None:
            fault = _FAULTS.get(event.recovery)
        elif event.action in ("add", "remove"):
            # Another device has taken its place, or none.
            fault = None
        else:
            return
        now = dict(self._faults)
        if fault is not None:
            LOG.warning("%s %s, so it is not offered", event.address, fault)
            now[event.address] = fault
        elif now.pop(event.address, None) is not None:
            LOG.info("%s has recovered", event.address)
        self._faults = MappingProxyType(now)

    def _clear_recoveries(self) -> None:
        """Clear recoveries in progress, whose end may be among the lost events.

        A recovery takes seconds, and the kernel reports one that fails.
        """
        begun = _FAULTS[ErrorRecovery.BEGUN]
        for address, fault in self._faults.items():
            if fault == begun:
                LOG.warning(
                    "kernel events were lost: %s, which was recovering from a PCIe "
                    "error, is offered again",
                    address,
                )
        self._faults = MappingProxyType(
            {k: v for k, v in self._faults.items() if v != begun}
        )


class HostMonitor:
    """The monitor thread.

    :param health: the fault tracker to update.
    :param look: scans the host; raises nothing.
    :param fall_back: seconds between two scans without an event.
    :param listen: opens the listener to kernel events.
    """

    def __init__(
        self,
        health: FaultTracker,
        look: Callable[[], object],
        fall_back: float,
        listen: Callable[[], Monitor] = Monitor,
    ) -> None:
        self._health = health
        self._look = look
        self._fall_back = fall_back
        self._listen = listen
        self._ending = threading.Event()
        self._thread: futures.Future[None] | None = None

    def start(self) -> None:
        """Start the thread; earlier changes are not detected.

        Failures to receive events or to start a thread are logged: the host can be
        served without a monitor.
        """
        try:
            listener: Monitor | None = self._listen()
        except exception.HostStepFailed as error:
            LOG.warning("%s", error)
            listener = None
        try:
            self._thread = deadlines.begin(self._watch, listener)
        except exception.DeviceStuck as error:
            LOG.warning("cannot monitor the host: %s", error)

    def stop(self, seconds: float = 0.0) -> bool:
        """Stop the thread, and return whether it ended within the timeout.

        It may hang in a scan, for which the caller need not wait.
        """
        self._ending.set()
        return self._thread is None or bool(futures.wait([self._thread], seconds).done)

    def _watch(self, listener: Monitor | None) -> None:
        while not self._ending.is_set():
            try:
                changed = self._changed(listener)
            except exception.HostStepFailed as error:
                LOG.warning("%s; the host will be scanned periodically", error)
                listener = None
            except Exception:
                # The thread must survive: its future is never read.
                LOG.exception("cannot process a kernel event")
                listener = None
            else:
                if changed and not self._ending.is_set():
                    self._look()

    def _changed(self, listener: Monitor | None) -> bool:
        """Wait until a change is complete; return False to end the thread."""
        due = time.monotonic() + self._fall_back
        while (left := due - time.monotonic()) > 0:
            if self._ending.is_set():
                return False
            if self._heard(listener, min(left, _STEP)):
                break
        else:
            return True
        latest = time.monotonic() + RESTLESS
        while time.monotonic() < latest and self._heard(listener, QUIET):
            if self._ending.is_set():
                return False
        return True

    def _heard(self, listener: Monitor | None, seconds: float) -> bool:
        """Return whether an event arrived within the timeout."""
        if listener is None:
            self._ending.wait(seconds)
            return False
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            event = listener.poll(left)
            if event is not None:
                self._health.note(event)
                return True
        return False
