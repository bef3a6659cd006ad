# SPDX-License-Identifier: Apache-2.0

"""Parts of a device that exist on its host driver.

Each of them ends, or stops the unbind, when the function leaves its driver:

* mediated devices (Documentation/driver-api/vfio-mediated-device.rst);
* vGPUs of NVIDIA on virtual functions, which Linux 6.8 and later has without mediated
  devices (NVIDIA vGPU Software User Guide, ``nvidia/current_vgpu_type``);
* MIG instances (NVIDIA Multi-Instance GPU User Guide, ``/proc/driver/nvidia``).
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterator, Mapping
from typing import Final

from os_acc.exception import InvalidInput
from os_acc.host import vgpu
from os_acc.host.attributes import names, read_lines
from os_acc.host.class_devices import devices_in
from os_acc.host.uses import judge
from os_acc.host.view import Host
from os_acc.objects.pci import PciAddress

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
        if function.identity.vendor != vgpu.NVIDIA or function.physfn is None:
            continue
        use = judge(str(address), functools.partial(_vgpu, root, address))
        if use is not None:
            yield address, use


def _vgpu(root: str, address: PciAddress) -> str | None:
    kind = vgpu.current_type(root, address)
    return f"it is a vGPU of type {kind}" if kind else None


def _mig_instances(root: str) -> Iterator[tuple[PciAddress, str]]:
    # Reads of the information of a GPU go through its driver.
    instances = mig_instances(root)
    if not instances:
        return
    for name in names(os.path.join(root, _PROC, "gpus")):
        use = mig_use(root, name, instances)
        with contextlib.suppress(InvalidInput):
            if use is not None:
                yield PciAddress.parse(name), use


def mig_instances(root: str) -> dict[str, str]:
    """Return the first MIG instance of each GPU that has any, by the GPU's minor.

    :raises HostStepFailed: they cannot be listed.
    """
    directory = os.path.join(root, _PROC, "capabilities")
    found = {}
    for name in names(directory):
        below = names(os.path.join(directory, name, "mig"))
        instances = list(filter(_INSTANCE.fullmatch, below))
        if instances:
            found[name.removeprefix("gpu")] = instances[0]
    return found


def mig_use(root: str, name: str, instances: Mapping[str, str]) -> str | None:
    """Return the use of a function by its MIG instance; None: it has none.

    :param name: the function's address.
    :param instances: see :func:`mig_instances`.
    """
    path = os.path.join(root, _PROC, "gpus", name, "information")
    return judge(name, functools.partial(_mig_use, path, instances))


def _mig_use(path: str, instances: Mapping[str, str]) -> str | None:
    for line in read_lines(path):
        if (match := _MINOR.match(line)) is not None and match[1] in instances:
            return f"it has the MIG instance {instances[match[1]]}"
    return None
