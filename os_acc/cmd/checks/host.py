# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Can this kernel give devices to guests at all?"""

from __future__ import annotations

from collections.abc import Iterator

from os_acc.cmd.checks.finding import Finding, failed, ok
from os_acc.cmd.checks.scene import Scene
from os_acc.host import iommu, vfio


def iommu_on(scene: Scene) -> Iterator[Finding]:
    """Are there IOMMU groups?"""
    if iommu.iommu_on(scene.root):
        yield ok(f"{len(scene.host.groups)} IOMMU groups")
    else:
        yield failed(
            "the IOMMU is off: there are no IOMMU groups",
            "switch it on in the firmware, and with intel_iommu=on on the kernel's "
            "command line (AMD's and Arm's need no option)",
        )


def vfio_ready(scene: Scene) -> Iterator[Finding]:
    """Is the driver there?"""
    vfio.vfio_ready(scene.root)
    yield ok("the driver is loaded")
