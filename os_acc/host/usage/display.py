# SPDX-License-Identifier: Apache-2.0

"""Display adapters that show the host's console or desktop."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator

from os_acc.host.attributes import read_text
from os_acc.host.class_devices import ClassDevice, class_devices
from os_acc.host.function import DEVICES
from os_acc.host.usage.guard import judge
from os_acc.host.view import Host
from os_acc.objects.pci import PciAddress

_DISPLAY_CLASS = 0x03


def read_uses(root: str, host: Host) -> Iterator[tuple[PciAddress, str]]:
    """Each display in use, with the function that it belongs to.

    :raises HostStepFailed: the kernel refuses to say.
    """
    yield from _boot_displays(root, host)
    yield from _connectors(root)
    if _console_on_framebuffer(root):
        for device in class_devices(root, "graphics"):
            if device.owner is not None:
                yield device.owner, f"framebuffer {device.name} shows the console"


def _boot_displays(root: str, host: Host) -> Iterator[tuple[PciAddress, str]]:
    for address, function in host.functions.items():
        if function.class_code >> 16 == _DISPLAY_CLASS:
            path = os.path.join(root, DEVICES, str(address))
            use = judge(str(address), functools.partial(_boot_vga, path))
            if use is not None:
                yield address, use


def _boot_vga(path: str) -> str | None:
    # The VGA arbiter's choice, also where no driver has taken the function.
    if read_text(f"{path}/boot_vga") == "1":
        return "it is the display that the firmware booted with"
    return None


def _connectors(root: str) -> Iterator[tuple[PciAddress, str]]:
    for device in class_devices(root, "drm"):
        if device.owner is not None:
            use = judge(device.name, functools.partial(_screen, device))
            if use is not None:
                yield device.owner, f"display output {use}"


def _screen(device: ClassDevice) -> str | None:
    # Cards and render nodes have neither attribute.
    if (
        read_text(f"{device.path}/status") == "connected"
        and read_text(f"{device.path}/enabled") == "enabled"
    ):
        return f"{device.name} drives a screen"
    return None


def _console_on_framebuffer(root: str) -> bool:
    return any(
        "frame buffer" in (read_text(f"{console.path}/name") or "")
        and read_text(f"{console.path}/bind") == "1"
        for console in class_devices(root, "vtconsole")
    )
