# SPDX-License-Identifier: Apache-2.0

"""Can this kernel give devices to guests at all?"""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.cmd.checks.context import CheckContext
from os_acc.cmd.checks.finding import Finding, failed, ok
from os_acc.host import iommu, vfio


def iommu_on(scene: CheckContext) -> Iterator[Finding]:
    """Are there IOMMU groups?"""
    if iommu.iommu_on(scene.root):
        yield ok(f"{len(scene.host.groups)} IOMMU groups")
    else:
        yield failed(
            "the IOMMU is off: there are no IOMMU groups",
            "switch it on in the firmware, and with intel_iommu=on on the kernel's "
            "command line (AMD's and Arm's need no option)",
        )


def vfio_ready(scene: CheckContext) -> Iterator[Finding]:
    """Is the driver there?"""
    vfio.vfio_ready(scene.root)
    yield ok("the driver is loaded")
