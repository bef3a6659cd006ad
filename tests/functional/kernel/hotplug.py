# SPDX-License-Identifier: Apache-2.0

"""Remove a function from the machine, and insert it again.

The machine sends the request to its own hypervisor, over a virtio port that is
connected to QEMU's monitor.
"""

from __future__ import annotations

import os
import time

import pyudev

from . import lane, sysfs
from .qmp import DEADLINE, Qmp

PORT = f"/dev/virtio-ports/{lane.QMP_PORT}"


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
