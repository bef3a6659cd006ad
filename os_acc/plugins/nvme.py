# SPDX-License-Identifier: Apache-2.0

"""NVMe drives, and VFs with namespaces of their own, erased between two guests."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import ClassVar

from oslo_config import cfg, types

from os_acc.objects import nvme
from os_acc.objects.nvme_erasure import EraseMethod
from os_acc.plugins import base, pci
from os_acc.privsep.nvme import steps as privileged

# The strongest methods first. An overwrite takes hours and wears the medium. Deallocate
# is advisory: the controller may leave a block as it is (NVM Command Set Specification
# 1.0, section 3.2.3), and the samples that are read back do not cover the disk.
_DEFAULT = (
    EraseMethod.SANITIZE_CRYPTO,
    EraseMethod.SANITIZE_BLOCK,
    EraseMethod.FORMAT_CRYPTO,
    EraseMethod.FORMAT,
)
_METHODS = cfg.ListOpt(
    "erase_methods",
    item_type=types.String(choices=[str(each) for each in EraseMethod]),
    default=[str(each) for each in _DEFAULT],
    help="The methods to erase NVMe drives and VFs between two guests, in the order "
    "of preference; the first one that the rules allow is used. Empty: nothing is "
    "erased, and NVMe functions that [os_acc] device_spec names are offered only with "
    "the tag allow_no_erase. A function with that tag is never erased. The manual has "
    "the methods and their rules.",
)


class NvmePlugin(base.PluginBase):
    """One provider for each drive; its VFs, if it has any, are the capacity.

    Names and resource class are those of :class:`.PciPlugin`, which offers the
    functions that this plugin does not erase, with the tag ``allow_no_erase``.
    """

    contract_version: ClassVar[tuple[int, int]] = (1, 0)
    is_fallback: ClassVar[bool] = True
    options: ClassVar[Sequence[cfg.Opt]] = (_METHODS,)

    def __init__(self, name: str, conf: cfg.ConfigOpts.GroupAttr, root: str) -> None:
        super().__init__(name, conf, root)
        # It says before the first guest that a drive could not be erased after it.
        self.health_step = privileged.health.with_arguments(self._methods)

    @property
    def _methods(self) -> tuple[str, ...]:
        return tuple(self.conf.erase_methods)

    def discover(self, candidates: base.Candidates) -> Iterable[base.Device]:
        if not self._methods:
            return
        usable = [
            each
            for each in candidates.usable
            if each.function.class_code == nvme.CLASS and not each.tags.allow_no_erase
        ]
        # All functions of a card count for the names, also those of the other plugin.
        for device in pci.devices(self.name, candidates, usable, pci.offer):
            yield dataclasses.replace(device, erasure=base.Erasure.PLUGIN)

    def prepare(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        """Refuse a device that could not be erased, before a consumer writes to it."""
        steps.run(privileged.prepare, self._methods)
        if steps.lease.wanted.attach_target is not base.AttachTarget.VM:
            # The host may look at its disks.
            self.release(handle, steps)

    def release(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        try:
            steps.run(privileged.release)
        except base.DeviceGone:
            # It is erased once it is back.
            return

    def erase(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> float:
        try:
            return steps.run(privileged.erase, self._methods) / 1000
        except base.DeviceStuck as error:
            # A format ends when it is done. Its worker goes on, and keeps the lock.
            if not error.address:
                raise
            return 0.0
