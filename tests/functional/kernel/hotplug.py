# SPDX-License-Identifier: Apache-2.0

"""Remove a function from the machine, and insert it again.

The machine sends the request to its own hypervisor, over a virtio port that is
connected to QEMU's monitor.
"""

from __future__ import annotations

import os
import struct
import time

import pyudev

from . import lane, sysfs
from .qmp import DEADLINE, Qmp

PORT = f"/dev/virtio-ports/{lane.QMP_PORT}"
#: Slot Control in the PCI Express capability: the power controller and indicator.
_SLOT_CONTROL = 0x18
_POWER_OFF, _INDICATOR, _INDICATOR_ON = 1 << 10, 0b11 << 8, 0b01 << 8


class Hotplug:
    """The slot at ``address``, which holds an ``edu`` when the tests begin."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._qmp = Qmp(os.open(PORT, os.O_RDWR | os.O_CLOEXEC))
        self._qmp.negotiate()

    def remove(self) -> None:
        """Remove the device; the kernel has released it when this returns."""
        self.request_removal()
        self.wait_removed()

    def request_removal(self) -> None:
        """Request the removal of the device, which may be held."""
        self._qmp.forget_events()
        self._qmp.execute("device_del", id=lane.HOTPLUG_ID)

    def wait_removed(self) -> None:
        """Wait until the kernel has released the device."""
        self._qmp.wait_event("DEVICE_DELETED", device=lane.HOTPLUG_ID)

    def insert(self) -> None:
        """Insert a device; it is on the bus when this returns."""
        monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source="kernel")
        monitor.filter_by("pci")
        monitor.start()
        self._qmp.execute(
            "device_add", driver="edu", id=lane.HOTPLUG_ID, bus=lane.HOTPLUG_BUS
        )
        end = time.monotonic() + DEADLINE
        while (left := end - time.monotonic()) > 0:
            # None also after libudev has dropped an event of another subsystem.
            device = monitor.poll(left)
            if device is None or device.sys_name != self.address:
                continue
            if device.action == "add":
                return
        raise TimeoutError(f"{self.address} did not come back")

    def set_power(self, on: bool) -> None:
        """Switch the power of the slot, without a request to the kernel.

        The power controller of the root port: Slot Control, bits 10 and 9:8 (PCI
        Express Base Specification 5.0, 7.5.3.10). The power indicator stays on: QEMU
        would remove the device otherwise (pcie_cap_slot_write_config() in
        hw/pci/pcie.c).
        """
        path = sysfs.DEVICES / lane.PORT_HOTPLUG / "config"
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            place = _express(os.pread(fd, 256, 0)) + _SLOT_CONTROL
            (before,) = struct.unpack("<H", os.pread(fd, 2, place))
            now = before & ~(_POWER_OFF | _INDICATOR) | _INDICATOR_ON
            if not on:
                now |= _POWER_OFF
            os.pwrite(fd, struct.pack("<H", now), place)
        finally:
            os.close(fd)

    def pcie_error(self, port: str) -> None:
        """Let a root port report an uncorrectable error that is not fatal.

        Completion timeout: PCI Express Base Specification, 6.2.7.
        """
        self._qmp.execute(
            "human-monitor-command",
            **{"command-line": f"pcie_aer_inject_error {port} COMP_TIME"},
        )

    def close(self) -> None:
        """Restore the slot's first state."""
        if not sysfs.exists(self.address):
            self.insert()
        self._qmp.close()


def _express(config: bytes) -> int:
    """Return the offset of the PCI Express capability in a configuration space."""
    offset = config[0x34]
    while config[offset] != 0x10:
        offset = config[offset + 1]
    return offset
