# SPDX-License-Identifier: Apache-2.0

"""What the kernel tells everybody of its devices, as it happens.

Needs no privilege and no udev daemon. The kernel speaks to the network
namespace of the host alone: in a container with one of its own nothing is
ever heard.
"""

from __future__ import annotations

import dataclasses
import enum
import errno
from typing import Final

from os_acc import exception
from os_acc.objects.pci import PciAddress

#: What can change what this host offers: its functions, what is behind an
#: FPGA's driver, the types of mediated devices.
_SUBSYSTEMS: Final = frozenset(
    {"pci", "dfl", "fpga_region", "fpga_manager", "mdev", "mdev_bus"}
)
# Of Linux' own, without a header in front.
_SOURCE: Final = "kernel"


class Recovery(enum.Enum):
    """How far the kernel is with a PCIe error (``pci_uevent_ers()``)."""

    BEGUN = "BEGIN_RECOVERY"
    SUCCESSFUL = "SUCCESSFUL_RECOVERY"
    FAILED = "FAILED_RECOVERY"


@dataclasses.dataclass(frozen=True, slots=True)
class Uevent:
    """One change of one device.

    :ivar action: ``add``, ``remove``, ``change``, ``bind``, ``unbind`` or
        ``move``; empty where the kernel has told more than could be heard.
    :ivar address: of a PCI function; None: it is something else.
    :ivar recovery: how far an error of this function is; None: this is not
        about one.
    """

    action: str
    address: PciAddress | None = None
    recovery: Recovery | None = None


class Monitor:
    """Hears what the kernel tells from now on.

    :raises HostStepFailed: there is nothing to hear it by.
    """

    def __init__(self) -> None:
        # Whoever does not listen does not pay for libudev.
        try:
            import pyudev

            context = pyudev.Context()
            self._monitor = pyudev.Monitor.from_netlink(context, source=_SOURCE)
            self._monitor.start()
        except (ImportError, OSError) as error:
            raise exception.HostStepFailed(
                f"the kernel's events cannot be heard: {error}",
                hint="install libudev; until then the host is looked at now and then",
            ) from error

    def poll(self, seconds: float) -> Uevent | None:
        """The next event that matters here; None: there was none in time.

        One that does not matter ends the wait, too.

        :raises HostStepFailed: nothing can be heard any more.
        """
        try:
            device = self._monitor.poll(timeout=seconds)
        except OSError as error:
            if error.errno == errno.ENOBUFS:
                return Uevent("")
            raise exception.HostStepFailed(
                f"the kernel's events cannot be heard any more: {error}"
            ) from error
        if device is None or device.subsystem not in _SUBSYSTEMS:
            return None
        properties = dict(device.properties)
        slot = properties.get("PCI_SLOT_NAME")
        return Uevent(
            action=device.action or "",
            address=PciAddress.parse(slot) if slot else None,
            recovery=_recovery(properties.get("ERROR_EVENT")),
        )


def _recovery(word: str | None) -> Recovery | None:
    try:
        return Recovery(word)
    except ValueError:
        return None
