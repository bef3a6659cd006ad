# SPDX-License-Identifier: Apache-2.0

"""Root's actions on an FPGA card, while a job runs as an ordinary user."""

from __future__ import annotations

import contextlib
import os
import time
import uuid

import pyudev

from tests.behaviour.root_side import RootSide

from . import dfl, dfl_trace, sysfs
from .accounts import OrdinaryUser
from .dfl_card import DEADLINE, Card
from .machine import Machine


class FpgaSide(RootSide):
    """The hardware of a card, in addition to the devices of all hosts."""

    def __init__(self, machine: Machine, qemu: OrdinaryUser, card: Card) -> None:
        super().__init__(machine, qemu)
        self._card = card
        self._recording = contextlib.ExitStack()
        self._pushed: dfl_trace.Pushed | None = None
        self._fd = -1
        self._events: pyudev.Monitor | None = None

    def card(self) -> str:
        return self._card.bdf

    def next_function(self, function: str) -> None:
        self._card.next_function(uuid.UUID(function))

    def fail_with(self, *bits: int) -> None:
        self._card.fail_with(*bits)

    def never_complete(self) -> None:
        self._card.never_complete()

    def complete(self) -> None:
        """Complete the current programming, and all following ones."""
        self._card.complete()
        self._card.wait_until_idle()

    def holds(self) -> str:
        return str(self._card.function())

    def programmed(self) -> int:
        return self._card.programmed_count()

    def is_untouched(self) -> bool:
        """Return whether the driver has made no request to it since the binding."""
        return dfl.state(self._card.bdf) == ("unknown", "")

    def record(self) -> None:
        """Begin to record the pushed payload."""
        self._pushed = self._recording.enter_context(dfl_trace.recorded())

    def recorded(self) -> bytes:
        """Stop recording; return the recorded payload."""
        assert self._pushed is not None
        with self._recording:
            return self._pushed.payload()

    def watch_drivers(self) -> None:
        """Begin to note the drivers that bind to the card."""
        self._events = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
        self._events.filter_by("pci")
        self._events.start()

    def drivers(self) -> tuple[str, ...]:
        """Return the drivers that have bound to it since, by the kernel's uevents."""
        assert self._events is not None
        # This event marks the end.
        sysfs.write(self._card.bdf, "uevent", "change")
        found, end = [], time.monotonic() + DEADLINE
        while time.monotonic() < end:
            event = self._events.poll(1)
            if event is None or event.sys_name != self._card.bdf:
                continue
            if event.action == "change":
                return tuple(found)
            if event.action == "bind":
                found.append(event.properties["DRIVER"])
        raise TimeoutError(f"the kernel does not report a change of {self._card.bdf}")

    def open_port(self) -> None:
        self._fd = os.open(dfl.node(dfl.port(self._card.bdf)), os.O_RDWR)

    def close_port(self) -> None:
        os.close(self._fd)

    def close(self) -> None:
        self._recording.close()
        super().close()
