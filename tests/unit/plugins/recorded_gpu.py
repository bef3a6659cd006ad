# SPDX-License-Identifier: Apache-2.0

"""A virtual machine with an H100, as ``os-acc host record --device`` has recorded it.

It has Linux 6.18 and NVIDIA's driver 580.159.04, and no IOMMU.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

from os_acc.testing import HostSpec

RECORDED: Final = Path(__file__).with_name("recorded_gpu_server.json")
NAMED: Final = ('{"vendor_id": "10de"}',)


def with_iommu(spec: HostSpec) -> HostSpec:
    """Return the host with an IOMMU, a group for each function, and vfio-pci."""
    functions = tuple(
        dataclasses.replace(each, isolated=True) for each in spec.functions
    )
    return dataclasses.replace(spec, functions=functions, iommu=True, vfio=True)
