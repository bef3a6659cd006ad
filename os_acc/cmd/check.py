# SPDX-License-Identifier: Apache-2.0

"""``os-acc check``: report whether this host is ready, and how to repair it."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from os_acc import exception, privsep
from os_acc.cmd import base, environment
from os_acc.cmd.checks import (
    CheckContext,
    Finding,
    Severity,
    configuration,
    devices,
    helpers,
    images,
    state,
)

CheckFunction: TypeAlias = Callable[[CheckContext], Iterable[Finding]]


class Check(base.Listing):
    """Check whether this host is ready, and show the remedy of each problem.

    Changes nothing. Ends with 1 if a check failed; warnings are not failures.
    """

    def configure(self) -> None:
        self._broken: exception.OsAccError | None = None
        # The other checks still run with a broken configuration.
        try:
            super().configure()
        except exception.InvalidConfiguration as error:
            self._broken = error

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        scene = CheckContext(self.os_acc.config, self.os_acc.root, self._broken)
        findings = list(self._run(_BEFORE, scene))
        with contextlib.suppress(exception.OsAccError):
            # The checks of the state report any error here.
            environment.become_owner(scene.settings.state_path)
        findings += self._run(_CHECKS, scene)
        self.is_failed = any(each.result is Severity.FAILED for each in findings)
        if parsed_args.formatter == "table" and not parsed_args.columns:
            # One column for both: the table fits a terminal of 100 columns.
            return _COLUMNS[:3], [
                (each.result.value, each.check, _text(each)) for each in findings
            ]
        return _COLUMNS, [
            (each.result.value, each.check, each.what, each.hint or None)
            for each in findings
        ]

    def _run(
        self, checks: Sequence[tuple[str, CheckFunction]], context: CheckContext
    ) -> Iterator[Finding]:
        """Run checks; the failure of one does not stop the others."""
        for number, (name, check) in enumerate(checks, 1):
            self.progress(f"{number}/{len(checks)} {name} ...")
            try:
                findings = list(check(context))
            except exception.OsAccError as error:
                findings = [context.failure(error)]
            for finding in findings:
                if finding.result is not Severity.OK:
                    self.progress(f"{finding.result.value}: {name}: {finding.what}\n")
                yield dataclasses.replace(finding, check=name)
        self.progress("")


def _text(finding: Finding) -> str:
    return f"{finding.what}\nhint: {finding.hint}" if finding.hint else finding.what


_COLUMNS = ("Result", "Check", "What", "Hint")

#: Checks that run as root, if started by root: helpers then need no sudo.
_BEFORE: Sequence[tuple[str, CheckFunction]] = (
    ("configuration", configuration.configuration),
    ("helper base", functools.partial(helpers.starts, privsep.base)),
    ("helper inspect", functools.partial(helpers.starts, privsep.inspect)),
    ("helper image", functools.partial(helpers.starts, privsep.image)),
    ("privileged.conf", helpers.limits),
)

#: Checks that run as the owner of the state directory.
_CHECKS: Sequence[tuple[str, CheckFunction]] = (
    ("iommu", devices.iommu_on),
    ("vfio-pci", devices.vfio_ready),
    ("state directory", state.directory),
    ("state file system", state.file_system),
    ("state files", state.files),
    ("records", state.records),
    ("options", configuration.option_names),
    ("device_spec", configuration.device_spec),
    ("privileged.conf", helpers.denied),
    ("plugins", configuration.plugins),
    ("plugin helpers", helpers.of_plugins),
    ("helper nvme", helpers.nvme),
    ("networks", configuration.networks),
    ("placement", configuration.placement),
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
