# SPDX-License-Identifier: Apache-2.0

"""Parts of a device that somebody has created on its host driver.

Each of them ends, or stops the unbind, when the function leaves its driver:

* mediated devices (Documentation/driver-api/vfio-mediated-device.rst);
* vGPUs of NVIDIA on virtual functions, which Linux 6.8 and later has without mediated
  devices (NVIDIA vGPU Software User Guide, ``nvidia/current_vgpu_type``);
* MIG instances (NVIDIA Multi-Instance GPU User Guide, ``/proc/driver/nvidia``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final

from os_acc.exception import HostStepFailed, InvalidInput
from os_acc.host.attributes import names, number, read_lines, read_text
from os_acc.host.class_devices import devices_in
from os_acc.host.function import DEVICES
from os_acc.host.view import Host
from os_acc.objects.pci import PciAddress

_NVIDIA: Final = 0x10DE
_PROC: Final = "proc/driver/nvidia"
_MINOR: Final = re.compile(r"Device Minor:\s*([0-9]+)")
_INSTANCE: Final = re.compile(r"gi[0-9]+")


def part_uses(root: str, host: Host) -> Iterator[tuple[PciAddress, str]]:
    """Yield each part of a function that exists, with the function.

    :raises HostStepFailed: the kernel reports an error.
    """
    for device in devices_in(root, "sys/bus/mdev/devices"):
        if device.owner is not None:
            yield device.owner, f"it has the mediated device {device.name}"
    yield from _vgpus(root, host)
    yield from _mig_instances(root)


def _vgpus(root: str, host: Host) -> Iterator[tuple[PciAddress, str]]:
    for address, function in host.functions.items():
        if function.identity.vendor != _NVIDIA or function.physfn is None:
            continue
        path = os.path.join(root, DEVICES, str(address), "nvidia/current_vgpu_type")
        # Zero: none is created.
        if (text := read_text(path)) is not None and (kind := number(text, path)):
            yield address, f"it is a vGPU of type {kind}"


def _mig_instances(root: str) -> Iterator[tuple[PciAddress, str]]:
    for name in names(os.path.join(root, _PROC, "gpus")):
        minor = _minor(os.path.join(root, _PROC, "gpus", name, "information"))
        if minor is None:
            continue
        found = names(os.path.join(root, _PROC, f"capabilities/gpu{minor}/mig"))
        instances = list(filter(_INSTANCE.fullmatch, found))
        if instances:
            yield _address(name), f"it has the MIG instance {instances[0]}"


def _minor(path: str) -> str | None:
    for line in read_lines(path):
        if (match := _MINOR.match(line)) is not None:
            return match[1]
    return None


def _address(name: str) -> PciAddress:
    try:
        return PciAddress.parse(name)
    except InvalidInput as error:
        raise HostStepFailed(
            f"{_PROC}/gpus has {name!r}, not a PCI function"
        ) from error
