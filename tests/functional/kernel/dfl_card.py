# SPDX-License-Identifier: Apache-2.0

"""An FPGA card: memory behind BAR 0, and a thread that simulates the hardware.

The registers are those of the kernel's drivers/fpga/dfl.h, dfl-fme-mgr.c and
of Documentation/fpga/dfl.rst.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import threading
import time
import uuid
from collections.abc import Callable

from . import sysfs

#: Seconds between two polls of the registers by the hardware, and the timeout of a
#: wait.
_TICK = 0.001
DEADLINE = 300.0

_PR, _PORT, _PORTS_APART, _AFU = 0x1000, 0x40000, 0x40000, 0x1000
_TYPE_AFU, _TYPE_PRIVATE, _TYPE_FIU = 1, 3, 4
_ID_FME, _ID_PORT, _ID_PR = 0, 1, 5
_END = 1 << 40
_GUID_LOW, _GUID_HIGH, _NEXT_AFU, _CAPABILITY = 0x8, 0x10, 0x18, 0x30
_FME_PORTS, _FME_BITSTREAM = 0x38, 0x60
_IMPLEMENTED = 1 << 60
_PORT_CONTROL, _RESET, _RESET_DONE = 0x38, 1 << 0, 1 << 4
_PR_CONTROL, _PR_STATUS, _PR_DATA, _PR_ERROR = 0x8, 0x10, 0x18, 0x20
_PR_INTERFACE_LOW, _PR_INTERFACE_HIGH = 0xA8, 0xB0
_PR_PORT, _PR_START, _PR_COMPLETE = 7 << 7, 1 << 12, 1 << 13
_PR_FAILED, _CREDITS = 1 << 16, 0x1FF
#: PCI_COMMAND and its bit for memory.
_COMMAND, _MEMORY = 0x4, 0x2


@dataclasses.dataclass(frozen=True, slots=True)
class Error:
    """One of the errors that the hardware reports: its bit of FME_PR_ERR.

    :ivar status: the kernel's text in fpga_manager's ``status``.
    """

    bit: int
    status: str


#: FPGA_MGR_STATUS_*, with the names of fpga-mgr.c.
ERRORS = (
    Error(0, "reconfig operation error"),
    Error(1, "reconfig CRC error"),
    Error(2, "reconfig incompatible image"),
    Error(3, "reconfig IP protocol error"),
    Error(4, "reconfig fifo overflow error"),
)


class Card:
    """A card with one region behind each of its ports.

    :ivar interface_id: the interface id of its bitstreams.
    """

    def __init__(self, bdf: str, interface_id: uuid.UUID, ports: int = 1) -> None:
        self.bdf = bdf
        self.interface_id = interface_id
        self._ports = range(ports)
        self._next: uuid.UUID | None = None
        self._errors = 0
        self._completes = True
        self._programmed: list[int] = []
        self._trouble: Exception | None = None
        self._power_on = uuid.UUID(int=0)
        self._memory = self._map()
        self._registers = memoryview(self._memory).cast("Q")
        self._lay_out()
        self._stopped = threading.Event()
        self._turn = threading.Lock()
        self._hardware = threading.Thread(target=self._play, daemon=True)
        self._hardware.start()

    def power_on_function(self, function: uuid.UUID) -> None:
        """Power the card on, with this function in each of its regions."""
        with self._turn:
            self._next, self._errors, self._completes = None, 0, True
            self._programmed.clear()
            self._lay_out()
            for port in self._ports:
                self._hold(port, function)

    def next_function(self, function: uuid.UUID) -> None:
        """Set the function that the next and all later bitstreams implement."""
        with self._turn:
            self._next, self._errors, self._completes = function, 0, True

    def fail_with(self, *bits: int) -> None:
        """Report these errors after each pushed bitstream."""
        with self._turn:
            self._errors, self._completes = sum(1 << bit for bit in bits), True

    def never_complete(self) -> None:
        """Accept pushed bitstreams, and never report completion."""
        with self._turn:
            self._completes = False

    def complete(self) -> None:
        """Report completion again, also for the current bitstream."""
        with self._turn:
            self._completes = True

    def wait_until_pushed(self) -> None:
        """Wait for a pushed bitstream that is not complete.

        :raises TimeoutError: none was pushed.
        """
        self._wait(lambda: bool(self._get(_PR + _PR_CONTROL) & _PR_COMPLETE))

    def wait_until_idle(self) -> None:
        """Wait until no pushed bitstream has to be completed.

        :raises TimeoutError: one is still incomplete.
        """
        self._wait(lambda: not self._get(_PR + _PR_CONTROL) & _PR_COMPLETE)

    def function(self, port: int = 0) -> uuid.UUID:
        """Return the function in a region."""
        afu = self._port(port) + _AFU
        high, low = self._get(afu + _GUID_HIGH), self._get(afu + _GUID_LOW)
        return uuid.UUID(int=high << 64 | low)

    def in_reset(self, port: int = 0) -> bool:
        """Return whether the port is held in reset: its function is unusable."""
        return bool(self._get(self._port(port) + _PORT_CONTROL) & _RESET)

    def last_word(self) -> int:
        """Return the last 32 bits that were pushed."""
        return self._get(_PR + _PR_DATA)

    def programmed_count(self) -> int:
        """Return the number of bitstreams completed since power-on, failed or not."""
        return len(self._programmed)

    def programmed_ports(self) -> tuple[int, ...]:
        """Return the ports of these bitstreams."""
        return tuple(self._programmed)

    def close(self) -> None:
        """Stop the simulation.

        :raises Exception: the error that has ended the hardware's thread.
        """
        self._stopped.set()
        self._hardware.join()
        self._registers.release()
        self._memory.close()
        if self._trouble is not None:
            raise self._trouble

    def _map(self) -> mmap.mmap:
        device = sysfs.DEVICES / self.bdf
        # Not through ``enable``: it counts, and the driver's own call would do nothing.
        with open(device / "config", "r+b", buffering=0) as config:
            config.seek(_COMMAND)
            command = int.from_bytes(config.read(2), "little") | _MEMORY
            config.seek(_COMMAND)
            config.write(command.to_bytes(2, "little"))
        fd = os.open(device / "resource0", os.O_RDWR | os.O_CLOEXEC)
        try:
            return mmap.mmap(fd, self._port(len(self._ports)))
        finally:
            os.close(fd)

    def _lay_out(self) -> None:
        for offset in range(len(self._registers)):
            if self._registers[offset]:
                self._registers[offset] = 0
        ports = len(self._ports)
        self._put(0, _header(_TYPE_FIU, _ID_FME, _PR))
        self._put(_CAPABILITY, ports << 17)
        self._put(_FME_BITSTREAM, 0x0123456789ABCDEF)
        self._put(_PR, _header(_TYPE_PRIVATE, _ID_PR))
        self._put(_PR + _PR_STATUS, _CREDITS)
        low, high = _halves(self.interface_id)
        self._put(_PR + _PR_INTERFACE_LOW, low)
        self._put(_PR + _PR_INTERFACE_HIGH, high)
        for number in self._ports:
            port = self._port(number)
            self._put(_FME_PORTS + 8 * number, _IMPLEMENTED | port)
            self._put(port, _header(_TYPE_FIU, _ID_PORT))
            self._put(port + _NEXT_AFU, _AFU)
            self._put(port + _CAPABILITY, 4 << 8 | number)
            self._put(port + _AFU, _header(_TYPE_AFU, 0))

    def _hold(self, port: int, function: uuid.UUID) -> None:
        low, high = _halves(function)
        self._put(self._port(port) + _AFU + _GUID_LOW, low)
        self._put(self._port(port) + _AFU + _GUID_HIGH, high)

    def _play(self) -> None:
        while not self._stopped.wait(_TICK):
            try:
                with self._turn:
                    self._tick()
            except Exception as error:  # noqa: BLE001 - close() raises it
                self._trouble = error
                return

    def _tick(self) -> None:
        if self._get(0) != _header(_TYPE_FIU, _ID_FME, _PR):
            # Reads fail while the function does not decode its memory.
            return
        for number in self._ports:
            place = self._port(number) + _PORT_CONTROL
            control = self._get(place)
            if bool(control & _RESET) != bool(control & _RESET_DONE):
                self._put(place, control ^ _RESET_DONE)
        control = self._get(_PR + _PR_CONTROL)
        if control & _PR_COMPLETE:
            if self._completes:
                self._finish(control)
        elif control & _RESET and not control & _RESET_DONE:
            self._put(_PR + _PR_ERROR, 0)
            self._put(_PR + _PR_STATUS, _CREDITS)
            self._put(_PR + _PR_CONTROL, control | _RESET_DONE)

    def _finish(self, control: int) -> None:
        port = (control & _PR_PORT) >> 7
        if self._errors:
            self._put(_PR + _PR_ERROR, self._errors)
            self._put(_PR + _PR_STATUS, _CREDITS | _PR_FAILED)
        elif self._next is not None:
            self._hold(port, self._next)
        self._programmed.append(port)
        # The driver waits for _PR_START, and then does not touch the register.
        # Therefore the
        # next reset is acknowledged once it is seen.
        self._put(_PR + _PR_CONTROL, control & _PR_PORT)

    def _wait(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + DEADLINE
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"nothing happened to {self.bdf}")
            time.sleep(_TICK)

    def _port(self, number: int) -> int:
        return _PORT + _PORTS_APART * number

    def _get(self, offset: int) -> int:
        return self._registers[offset // 8]

    def _put(self, offset: int, value: int) -> None:
        self._registers[offset // 8] = value


def _header(kind: int, number: int, following: int = 0) -> int:
    return kind << 60 | (following << 16 or _END) | number


def _halves(number: uuid.UUID) -> tuple[int, int]:
    return number.int & (1 << 64) - 1, number.int >> 64
