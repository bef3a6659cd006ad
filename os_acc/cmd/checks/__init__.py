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

"""What ``os-acc check`` looks at: one small function for each question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from os_acc import exception
from os_acc.cmd.checks import configured, devices, helpers, host, images, state
from os_acc.cmd.checks.finding import Check, Finding, Result
from os_acc.cmd.checks.scene import Scene

__all__ = ["BEFORE", "CHECKS", "Finding", "Result", "Scene", "run"]

#: While root, if started by root: it starts helpers without sudo.
BEFORE: Sequence[tuple[str, Check]] = (
    ("configuration", configured.configuration),
    ("helper base", helpers.base),
    ("helper inspect", helpers.inspect),
    ("helper image", helpers.image),
    ("privileged.conf", helpers.limits),
)

#: As the owner of the state directory.
CHECKS: Sequence[tuple[str, Check]] = (
    ("iommu", host.iommu_on),
    ("vfio-pci", host.vfio_ready),
    ("state directory", state.directory),
    ("state file system", state.file_system),
    ("state files", state.files),
    ("records", state.records),
    ("device_spec", configured.device_spec),
    ("plugins", configured.plugins),
    ("networks", configured.networks),
    ("claims", devices.claims),
    ("isolation", devices.isolation),
    ("denylist", devices.denylist),
    ("unknown devices", devices.unknown),
    ("devices", devices.others),
    ("image source", images.source),
    ("image signers", images.signers),
    ("image cache", images.cache),
    ("image files", images.files),
)


def run(checks: Sequence[tuple[str, Check]], scene: Scene) -> Iterator[Finding]:
    """Make these checks, each whatever has become of the others."""
    for name, check in checks:
        try:
            findings = list(check(scene))
        except exception.OsAccError as error:
            findings = [scene.failure(error)]
        for finding in findings:
            yield finding.named(name)
