# SPDX-License-Identifier: Apache-2.0

"""Network interfaces that are up or part of another one."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from os_acc.host.attributes import link_name, names, number, read_text
from os_acc.host.class_devices import ClassDevice, class_devices
from os_acc.host.usage.guard import judge
from os_acc.objects.pci import PciAddress

_IFF_UP = 0x1  # include/uapi/linux/if.h


def read_uses(root: str) -> Iterator[tuple[PciAddress, str]]:
    """Each interface in use, with the function that it belongs to.

    :raises HostStepFailed: the kernel refuses to say.
    """
    for device in class_devices(root, "net"):
        if device.owner is not None:
            use = judge(device.name, functools.partial(_use, device))
            if use is not None:
                yield device.owner, f"network interface {use}"


def _use(device: ClassDevice) -> str | None:
    if (master := link_name(f"{device.path}/master")) is not None:
        return f"{device.name} is part of {master}"
    for name in names(device.path):
        if name.startswith("upper_"):
            return f"{device.name} carries {name.removeprefix('upper_')}"
    return f"{device.name} is up" if _is_up(device.path) else None


def _is_up(path: str) -> bool:
    flags = read_text(f"{path}/flags")
    if flags is not None and number(flags, f"{path}/flags") & _IFF_UP:
        return True
    return read_text(f"{path}/operstate") == "up"
