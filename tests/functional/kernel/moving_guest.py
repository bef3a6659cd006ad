# SPDX-License-Identifier: Apache-2.0

"""Inner guests that QEMU moves with a mediated device of mtty.

The registers of its port are those of a 16550 at BAR 0 (include/uapi/linux/
serial_reg.h).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from .accounts import OrdinaryUser
from .guest import InnerGuest

#: The registers that a guest writes, by offset: line control (without the divisor
#: latch), modem control, scratch.
REGISTERS = {3: 0x1B, 4: 0x0A, 7: 0x5A}
#: Seconds in which the firmware enables the device, in an emulation within another.
_DEADLINE = 240.0


class Move(NamedTuple):
    """A move, as both QEMUs report it.

    :ivar stopped: the time in seconds since 1970 at which the source has stopped.
    :ivar resumed: the time at which the target has resumed.
    :ivar transferred: bytes of the state of the VFIO device.
    """

    stopped: float
    resumed: float
    transferred: int


class MovingGuest(InnerGuest):
    """A guest of one mediated device that QEMU may move.

    mtty reports no dirty pages: without this option, QEMU refuses to move.
    """

    #: QEMU's id of the device.
    device = "host0"
    device_options = ",enable-migration=on,x-device-dirty-page-tracking=off"

    def write_registers(self) -> None:
        """Write :data:`REGISTERS`, once the firmware has enabled the device.

        :raises AssertionError: it has not.
        """
        deadline = time.monotonic() + _DEADLINE
        while self.registers() != REGISTERS:
            assert time.monotonic() < deadline, f"{self.registers()} at {self._port()}"
            time.sleep(0.5)
            if (port := self._port()) > 0:
                for offset, value in REGISTERS.items():
                    self._monitor(f"o /b {port + offset:#x} {value:#x}")

    def registers(self) -> Mapping[int, int]:
        """Return the values of the registers; empty: BAR 0 has no address."""
        if (port := self._port()) <= 0:
            return {}
        texts = {each: self._monitor(f"i /b {port + each:#x}") for each in REGISTERS}
        return {each: int(text.rpartition("=")[2], 16) for each, text in texts.items()}

    def move_to(self, target: ArrivingGuest, socket: str) -> Move:
        """Move this guest, and return once the target has resumed.

        :param socket: the path that the target listens on.
        :raises AssertionError: QEMU did not move it.
        """
        target.listen(socket)
        self._qmp.execute("migrate", uri=f"unix:{socket}")
        stopped = self._qmp.wait_event("STOP")
        resumed = target.wait_until_resumed()
        deadline = time.monotonic() + _DEADLINE
        while (found := self._qmp.execute("query-migrate"))["status"] != "completed":
            assert found["status"] != "failed", found
            assert time.monotonic() < deadline, found
            time.sleep(0.2)
        return Move(_time(stopped), resumed, found["vfio"]["transferred"])

    def _port(self) -> int:
        for bus in self._qmp.execute("query-pci"):
            for device in bus["devices"]:
                if device["qdev_id"] == self.device:
                    (region,) = (each for each in device["regions"] if each["bar"] == 0)
                    return int(region["address"])
        return 0


class ArrivingGuest(MovingGuest):
    """The target of a move."""

    options = ("-incoming", "defer")

    def listen(self, socket: str) -> None:
        """Wait for the source at a path."""
        self._qmp.execute("migrate-incoming", uri=f"unix:{socket}")

    def wait_until_resumed(self) -> float:
        """Return the time at which the guest has resumed."""
        return _time(self._qmp.wait_event("RESUME"))


def socket_of(user: OrdinaryUser) -> str:
    """Return the path of a socket that only this user may create."""
    return str(user.home / "migration")


def _time(event: dict[str, Any]) -> float:
    found = event["timestamp"]
    return float(found["seconds"]) + found["microseconds"] / 1_000_000
