# SPDX-License-Identifier: Apache-2.0

"""Configure the VFs of an NVMe controller for a host driver.

A fresh VF is offline and has no queues: the nvme driver binds it, finds it
not ready half a second later, and releases it. NVMe Base Specification 2.0,
section 5.26 (Virtualization Management).
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

from . import sysfs

_VIRTUALIZATION_MANAGEMENT = 0x1C
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


def _manage(fd: int, controller: int, action: int, resource: int, count: int) -> None:
    cdw10 = controller << 16 | resource << 8 | action
    fields = [_VIRTUALIZATION_MANAGEMENT, *[0] * 17]
    fields[10:12] = [cdw10, count]
    status = fcntl.ioctl(fd, _NVME_IOCTL_ADMIN_CMD, bytearray(_COMMAND.pack(*fields)))
    if status:
        raise OSError(f"virtualization management: NVMe status {status:#x}")
