# SPDX-License-Identifier: Apache-2.0

"""What root does to an FPGA card while a job runs as somebody else."""

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
    """The hardware of a card, beside what all hosts have."""

    def __init__(self, machine: Machine, qemu: OrdinaryUser, card: Card) -> None:
        super().__init__(machine, qemu)
        self._card = card
        self._recording = contextlib.ExitStack()
        self._pushed: dfl_trace.Pushed | None = None
        self._fd = -1
        self._events: pyudev.Monitor | None = None

    def card(self) -> str:
        """Its address."""
        return self._card.bdf

    def next_function(self, function: str) -> None:
        """See :meth:`.CardProvider.next_function`."""
        self._card.next_function(uuid.UUID(function))

    def fail_with(self, *bits: int) -> None:
        """See :meth:`.CardProvider.fail_with`."""
        self._card.fail_with(*bits)

    def never_complete(self) -> None:
        """See :meth:`.CardProvider.never_complete`."""
        self._card.never_complete()

    def complete(self) -> None:
        """Complete what is under way, and all that follows."""
        self._card.complete()
        self._card.wait_until_idle()

    def holds(self) -> str:
        """The function that the hardware holds."""
        return str(self._card.function())

    def programmed(self) -> int:
        """How many bitstreams have been completed."""
        return self._card.programmed_count()

    def is_untouched(self) -> bool:
        """Whether the driver was asked for nothing since it has the card."""
        return dfl.state(self._card.bdf) == ("unknown", "")

    def record(self) -> None:
        """Begin to record what is pushed."""
        self._pushed = self._recording.enter_context(dfl_trace.recorded())

    def recorded(self) -> bytes:
        """Stop; what was pushed meanwhile."""
        assert self._pushed is not None
        with self._recording:
            return self._pushed.payload()

    def watch_drivers(self) -> None:
        """Begin to note which drivers take the card."""
        self._events = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
        self._events.filter_by("pci")
        self._events.start()

    def drivers(self) -> tuple[str, ...]:
        """The drivers that have taken it since, by the kernel's uevents."""
        assert self._events is not None
        # The last event that counts.
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
        """Use the card's port, as a program of the host's does."""
        self._fd = os.open(dfl.node(dfl.port(self._card.bdf)), os.O_RDWR)

    def close_port(self) -> None:
        """Do not use it any more."""
        os.close(self._fd)

    def close(self) -> None:
        self._recording.close()
        super().close()
