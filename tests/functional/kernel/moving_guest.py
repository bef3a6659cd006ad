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
from .qmp import Monitor, human

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


class SerialPort:
    """The mediated device of mtty that a guest has.

    :param monitor: of the guest's QEMU.
    :param device: QEMU's id of the device.
    """

    def __init__(self, monitor: Monitor, device: str) -> None:
        self._monitor, self._device = monitor, device

    def write_registers(self) -> None:
        """Write :data:`REGISTERS`, once the firmware has enabled the device.

        :raises AssertionError: it has not.
        """
        deadline = time.monotonic() + _DEADLINE
        while self.registers() != REGISTERS:
            where = self._address()
            assert time.monotonic() < deadline, f"{self.registers()} at {where}"
            time.sleep(0.5)
            if where > 0:
                for offset, value in REGISTERS.items():
                    human(self._monitor, f"o /b {where + offset:#x} {value:#x}")

    def registers(self) -> Mapping[int, int]:
        """Return the values of the registers; empty: BAR 0 has no address."""
        if (where := self._address()) <= 0:
            return {}
        texts = {e: human(self._monitor, f"i /b {where + e:#x}") for e in REGISTERS}
        return {each: int(text.rpartition("=")[2], 16) for each, text in texts.items()}

    def _address(self) -> int:
        for bus in self._monitor.execute("query-pci"):
            for device in bus["devices"]:
                if device["qdev_id"] == self._device:
                    (region,) = (each for each in device["regions"] if each["bar"] == 0)
                    return int(region["address"])
        return 0


class MovingGuest(InnerGuest):
    """A guest of one mediated device that QEMU may move.

    mtty reports no dirty pages: without this option, QEMU refuses to move.
    """

    device_options = ",enable-migration=on,x-device-dirty-page-tracking=off"

    @property
    def port(self) -> SerialPort:
        """Return its device."""
        return SerialPort(self._qmp, "host0")

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
