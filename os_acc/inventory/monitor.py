# SPDX-License-Identifier: Apache-2.0

"""Looks at the host again when the kernel says that something has changed.

A thread of the service that called ``initialize()``, and no more than that:
what it sees is what Placement is told next. A plug looks for itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from types import MappingProxyType
from typing import Final, Protocol

from oslo_log import log

from os_acc import deadlines, exception
from os_acc.host.uevents import Monitor, Recovery, Uevent
from os_acc.objects.pci import PciAddress

LOG = log.getLogger(__name__)

#: Seconds without an event after which a change is over: 64 VFs, or a card
#: that is plugged in, come as hundreds of events.
QUIET: Final = 0.5
#: Seconds after which it is looked at the host although it does not rest.
RESTLESS: Final = 5.0
#: Seconds that a thread needs at most to see that it is to end.
_STEP: Final = 1.0
_FAULTS: Final = {
    Recovery.BEGUN: "is recovering from a PCIe error",
    Recovery.FAILED: "has not recovered from a PCIe error",
}


class UeventListener(Protocol):
    """What is asked of :class:`os_acc.host.uevents.Monitor`."""

    def poll(self, seconds: float) -> Uevent | None:
        """The next event; None: there was none."""


class FaultTracker:
    """What the kernel has said of functions that are out of order.

    Known for as long as the process lives: the kernel says it once.
    """

    def __init__(self) -> None:
        self._faults: Mapping[PciAddress, str] = MappingProxyType({})

    @property
    def faults(self) -> Mapping[PciAddress, str]:
        """What is out of order, and how."""
        return self._faults

    def note(self, event: Uevent) -> None:
        """Keep what an event says. One thread notes, any thread reads."""
        if not event.action:
            self._doubt()
        if event.address is None:
            return
        if event.recovery is not None:
            fault = _FAULTS.get(event.recovery)
        elif event.action in ("add", "remove"):
            # Another device than the one that was there.
            fault = None
        else:
            return
        if fault is not None:
            LOG.warning("%s %s: it is given to nobody", event.address, fault)
        elif event.address in self._faults:
            LOG.info("%s is in order again", event.address)
        others = {k: v for k, v in self._faults.items() if k != event.address}
        if fault is not None:
            others[event.address] = fault
        self._faults = MappingProxyType(others)

    def _doubt(self) -> None:
        """Some events were lost: a recovery that is told of as begun may be over.

        It takes seconds. One that fails yet is told of again.
        """
        begun = _FAULTS[Recovery.BEGUN]
        for address, fault in self._faults.items():
            if fault == begun:
                LOG.warning(
                    "%s was recovering from a PCIe error when events of the kernel "
                    "were lost: it is given out again",
                    address,
                )
        self._faults = MappingProxyType(
            {k: v for k, v in self._faults.items() if v != begun}
        )


class HostMonitor:
    """The thread.

    :param health: what it keeps up to date.
    :param look: looks at the host; raises nothing.
    :param fall_back: seconds after which it looks although nothing was heard.
    :param listen: begins to hear the kernel.
    """

    def __init__(
        self,
        health: FaultTracker,
        look: Callable[[], object],
        fall_back: float,
        listen: Callable[[], UeventListener] = Monitor,
    ) -> None:
        self._health = health
        self._look = look
        self._fall_back = fall_back
        self._listen = listen
        self._ending = threading.Event()
        self._thread: futures.Future[None] | None = None

    def start(self) -> None:
        """Begin; what has changed before is not seen.

        Without the kernel's events, or without a thread, there is a line in
        the log: a host can be served all the same.
        """
        try:
            listener: UeventListener | None = self._listen()
        except exception.HostStepFailed as error:
            LOG.warning("%s", error)
            listener = None
        try:
            self._thread = deadlines.begin(self._watch, listener)
        except exception.DeviceStuck as error:
            LOG.warning("nothing watches the host: %s", error)

    def stop(self, seconds: float = 0.0) -> bool:
        """Let the thread end; whether it has in so many seconds.

        It may hang in a look, which is why nobody has to wait.
        """
        self._ending.set()
        return self._thread is None or bool(futures.wait([self._thread], seconds).done)

    def _watch(self, listener: UeventListener | None) -> None:
        while not self._ending.is_set():
            try:
                changed = self._changed(listener)
            except exception.HostStepFailed as error:
                LOG.warning("%s; from now on it is looked at now and then", error)
                listener = None
            except Exception:
                # Nobody reads what would end this thread.
                LOG.exception("an event of the kernel's is not understood")
                listener = None
            else:
                if changed and not self._ending.is_set():
                    self._look()

    def _changed(self, listener: UeventListener | None) -> bool:
        """Wait for a change and its end; false: it is time to end."""
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

    def _heard(self, listener: UeventListener | None, seconds: float) -> bool:
        """Whether something has changed; waits no longer than that."""
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
