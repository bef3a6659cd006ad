# SPDX-License-Identifier: Apache-2.0

"""The checks of ``os-acc check``: one small function for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from os_acc import exception
from os_acc.cmd.checks import configured, devices, helpers, images, state
from os_acc.cmd.checks.context import CheckContext, Finding, Severity

__all__ = ["BEFORE", "CHECKS", "CheckContext", "Finding", "Severity", "run"]

Check: TypeAlias = Callable[[CheckContext], Iterable[Finding]]

#: Checks that run as root, if started by root: helpers then need no sudo.
BEFORE: Sequence[tuple[str, Check]] = (
    ("configuration", configured.configuration),
    ("helper base", helpers.base),
    ("helper inspect", helpers.inspect),
    ("helper image", helpers.image),
    ("privileged.conf", helpers.limits),
)

#: Checks that run as the owner of the state directory.
CHECKS: Sequence[tuple[str, Check]] = (
    ("iommu", devices.iommu_on),
    ("vfio-pci", devices.vfio_ready),
    ("state directory", state.directory),
    ("state file system", state.file_system),
    ("state files", state.files),
    ("records", state.records),
    ("options", configured.option_names),
    ("device_spec", configured.device_spec),
    ("plugins", configured.plugins),
    ("plugin helpers", helpers.of_plugins),
    ("helper nvme", helpers.nvme),
    ("networks", configured.networks),
    ("claims", devices.claims),
    ("isolation", devices.isolation),
    ("vfs", devices.vfs),
    ("denylist", devices.denylist),
    ("unknown devices", devices.unknown),
    ("devices", devices.others),
    ("health", devices.health),
    ("guest contents", devices.guest_contents),
    ("udev rules", devices.udev_rules),
    ("image source", images.source),
    ("image signers", images.signers),
    ("image cache", images.cache),
    ("image files", images.files),
)


def run(
    checks: Sequence[tuple[str, Check]], context: CheckContext
) -> Iterator[Finding]:
    """Run these checks; the failure of one does not stop the others."""
    for name, check in checks:
        try:
            findings = list(check(context))
        except exception.OsAccError as error:
            findings = [context.failure(error)]
        for finding in findings:
            yield finding.named(name)
