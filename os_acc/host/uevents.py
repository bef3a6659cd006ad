# SPDX-License-Identifier: Apache-2.0

"""Uevents of the kernel, received over netlink.

No privilege and no udev daemon is required. The kernel sends these events to the
host's network namespace only: a container with its own namespace never receives
any.
"""

from __future__ import annotations

import dataclasses
import enum
import errno
import selectors
from typing import Final

from os_acc import exception, native_threads
from os_acc.objects.pci import PciAddress

#: Subsystems that affect the inventory of this host: functions, the devices of
#: FPGA drivers, mediated devices. The namespaces of a drive are block devices.
_SUBSYSTEMS: Final = frozenset({"pci", "dfl", "fpga_region", "fpga_manager", "mdev"})
# The parent of mediated devices, in any subsystem, whose types come or go
# (mdev_register_parent() and mdev_unregister_parent() in drivers/vfio/mdev).
_OF_PARENT: Final = "MDEV_STATE"
# The kernel's own messages, without udev's header.
_SOURCE: Final = "kernel"


class ErrorRecovery(enum.Enum):
    """The state of a PCIe error recovery (``pci_uevent_ers()``)."""

    BEGUN = "BEGIN_RECOVERY"
    SUCCESSFUL = "SUCCESSFUL_RECOVERY"
    FAILED = "FAILED_RECOVERY"


_RECOVERIES: Final = {str(each.value): each for each in ErrorRecovery}


@dataclasses.dataclass(frozen=True, slots=True)
class Uevent:
    """One change of one device.

    :ivar action: ``add``, ``remove``, ``change``, ``bind``, ``unbind`` or
        ``move``; empty if events were lost because the buffer overflowed.
    :ivar address: of a PCI function; None: another device.
    :ivar recovery: the state of an error recovery of this function; None: the
        event is not about one.
    """

    action: str
    address: PciAddress | None = None
    recovery: ErrorRecovery | None = None


class Monitor:
    """Receive uevents from the creation of the object on.

    :raises HostStepFailed: uevents are not available.
    """

    def __init__(self) -> None:
        # Imported here, so that only monitoring requires libudev.
        try:
            import pyudev

            context = pyudev.Context()
            self._monitor = pyudev.Monitor.from_netlink(context, source=_SOURCE)
            self._monitor.start()
            # eventlet removes poll(2) from the module that pyudev has imported.
            if original := native_threads.before_eventlet("select"):
                pyudev._os.poll.select = original
            self._arrival = selectors.DefaultSelector()
            self._arrival.register(self._monitor, selectors.EVENT_READ)
        except (ImportError, OSError) as error:
            raise exception.HostStepFailed(
                f"cannot receive kernel events: {error}",
                hint="install libudev; until then the host is scanned periodically",
            ) from error

    def poll(self, seconds: float) -> Uevent | None:
        """Return the next relevant event; None: none arrived in time.

        An irrelevant event ends the wait, too.

        :raises HostStepFailed: the connection failed.
        """
        try:
            arrived = self._arrival.select(seconds)
            device = self._monitor.poll(timeout=0) if arrived else None
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                return Uevent("")
            raise exception.HostStepFailed(
                f"can no longer receive kernel events: {error}"
            ) from error
        if device is None:
            return None
        properties = dict(device.properties)
        path = properties.get("DEVPATH", "")
        is_disk = device.subsystem == "block" and "/nvme" in path
        if not (device.subsystem in _SUBSYSTEMS or is_disk or _OF_PARENT in properties):
            return None
        slot = properties.get("PCI_SLOT_NAME")
        return Uevent(
            action=device.action or "",
            address=PciAddress.parse(slot) if slot else None,
            recovery=_RECOVERIES.get(properties.get("ERROR_EVENT", "")),
        )
