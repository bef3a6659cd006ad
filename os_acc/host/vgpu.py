# SPDX-License-Identifier: Apache-2.0

"""NVIDIA's vGPUs on virtual functions, from Linux 6.8 on.

Without mediated devices, the vGPU Manager has a directory ``nvidia`` in each VF: a
number in ``current_vgpu_type`` is the type of the VF's vGPU, 0 none, and
``creatable_vgpu_types`` has a line "ID : name" for each type for which the card has
capacity now (NVIDIA vGPU Software User Guide, "Creating an NVIDIA vGPU on a Linux with
KVM hypervisor that uses a vendor-specific VFIO framework").
"""

from __future__ import annotations

import os
import re
from typing import Final

from os_acc.host.attributes import number, read_text
from os_acc.host.pci import DEVICES
from os_acc.objects.pci import PciAddress

NVIDIA: Final = 0x10DE
_LINE: Final = re.compile(r"\s*([0-9]{1,9})\s*:\s*(\S.*?)\s*", re.ASCII)


def current_type(root: str, address: PciAddress) -> int | None:
    """Return the type of a VF's vGPU, 0 for none; None: the VF cannot have one.

    :raises HostStepFailed: the kernel reports an error or malformed data.
    """
    path = _path(root, address, "current_vgpu_type")
    text = read_text(path)
    return None if text is None else number(text, path)


def creatable_types(root: str, address: PciAddress) -> dict[int, str]:
    """Return the names of the types that a VF can get now, by their numbers.

    :raises HostStepFailed: the kernel reports an error.
    """
    text = read_text(_path(root, address, "creatable_vgpu_types")) or ""
    matches = (_LINE.fullmatch(line) for line in text.splitlines())
    return {int(match[1]): match[2] for match in matches if match is not None}


def _path(root: str, address: PciAddress, attribute: str) -> str:
    return os.path.join(root, DEVICES, str(address), "nvidia", attribute)
