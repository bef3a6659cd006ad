# SPDX-License-Identifier: Apache-2.0

"""Configure the VFs of an NVMe controller for a host driver, and its namespaces.

A fresh VF is offline and has no queues: the nvme driver binds it, finds it
not ready half a second later, and releases it. NVMe Base Specification 2.0,
section 5.26 (Virtualization Management).
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from pathlib import Path

from . import sysfs

_VIRTUALIZATION_MANAGEMENT, _NAMESPACE_ATTACHMENT = 0x1C, 0x15
_ASSIGN, _ONLINE = 0x8, 0x9
_QUEUES, _INTERRUPTS = 0, 1
#: struct nvme_passthru_cmd of <linux/nvme_ioctl.h>; cdw10 is the 12th field.
_COMMAND = struct.Struct("<BBHI II QQ II IIIIII II")
_NVME_IOCTL_ADMIN_CMD = 0xC0484E41


def bring_online(pf: str) -> None:
    """Bring the VFs of ``pf`` online as controllers that a host driver can run."""
    (controller,) = (sysfs.DEVICES / pf / "nvme").iterdir()
    fd = os.open(Path("/dev") / controller.name, os.O_RDWR | os.O_CLOEXEC)
    try:
        for number in range(1, len(sysfs.virtual_functions(pf)) + 1):
            _manage(fd, number, _ASSIGN, _QUEUES, 2)
            _manage(fd, number, _ASSIGN, _INTERRUPTS, 1)
            _manage(fd, number, _ONLINE, 0, 0)
    finally:
        os.close(fd)


def attach(pf: str, namespace: int, controller: int) -> None:
    """Attach a namespace of the subsystem of ``pf`` to one of its controllers.

    NVMe Base Specification 2.0, section 5.20 (Namespace Attachment).
    """
    (own,) = (sysfs.DEVICES / pf / "nvme").iterdir()
    # A controller list: the number of entries, then the entries.
    listed = ctypes.create_string_buffer(struct.pack("<HH", 1, controller), 4096)
    fields = [_NAMESPACE_ATTACHMENT, *[0] * 17]
    fields[3], fields[7], fields[9] = namespace, ctypes.addressof(listed), len(listed)
    fd = os.open(Path("/dev") / own.name, os.O_RDWR | os.O_CLOEXEC)
    try:
        _send(fd, "namespace attachment", fields)
    finally:
        os.close(fd)


def rescan(pf: str) -> None:
    """Let the driver look for the namespaces of a controller."""
    (controller,) = (sysfs.DEVICES / pf / "nvme").iterdir()
    sysfs.store(controller / "rescan_controller", "1")


def _manage(fd: int, controller: int, action: int, resource: int, count: int) -> None:
    cdw10 = controller << 16 | resource << 8 | action
    fields = [_VIRTUALIZATION_MANAGEMENT, *[0] * 17]
    fields[10:12] = [cdw10, count]
    _send(fd, "virtualization management", fields)


def _send(fd: int, name: str, fields: list[int]) -> None:
    status = fcntl.ioctl(fd, _NVME_IOCTL_ADMIN_CMD, bytearray(_COMMAND.pack(*fields)))
    if status:
        raise OSError(f"{name}: NVMe status {status:#x}")
