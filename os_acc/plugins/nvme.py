# SPDX-License-Identifier: Apache-2.0

"""NVMe drives, and VFs with namespaces of their own, erased between two guests."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import ClassVar

from oslo_config import cfg, types

from os_acc.objects.nvme_erasure import EraseMethod
from os_acc.plugins import base, pci
from os_acc.privsep.nvme import steps as privileged

_METHODS = cfg.ListOpt(
    "erase_methods",
    item_type=types.String(choices=[str(each) for each in EraseMethod]),
    default=[],
    help="The methods to erase NVMe drives and VFs between two guests, in the order "
    "of preference; the first one that the rules allow is used. Empty: the plugin "
    "offers no device, and NVMe functions that [os_acc] device_spec names are offered "
    "without being erased. The manual has the methods and their rules.",
)


class NvmePlugin(pci.PciPlugin):
    """One provider for each drive; its VFs, if it has any, are the capacity.

    Names and resource class are those of :class:`.PciPlugin`, which offers the same
    functions if this plugin does not erase.
    """

    contract_version: ClassVar[tuple[int, int]] = (1, 4)
    is_fallback: ClassVar[bool] = True
    options: ClassVar[Sequence[cfg.Opt]] = (_METHODS,)
    health_step = privileged.health

    @property
    def _methods(self) -> tuple[str, ...]:
        return tuple(self.conf.erase_methods)

    def discover(self, candidates: base.Candidates) -> Iterable[base.Device]:
        if not self._methods:
            return
        own = dataclasses.replace(
            candidates,
            usable=tuple(each for each in candidates.usable if _is_nvme(each.function)),
            matched=tuple(
                each for each in candidates.matched if _is_nvme(each.function)
            ),
        )
        for device in super().discover(own):
            yield dataclasses.replace(device, erasure=base.Erasure.PLUGIN)

    def prepare(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        """Refuse a device that could not be erased, before a guest writes to it."""
        steps.run(privileged.prepare, self._methods)

    def release(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> None:
        steps.run(privileged.release)

    def erase(self, handle: base.AttachHandle, steps: base.PrivilegedSteps) -> float:
        try:
            return steps.run(privileged.erase, self._methods) / 1000
        except base.DeviceStuck as error:
            # A format ends when it is done. Its worker goes on, and keeps the lock.
            if not error.address:
                raise
            return 0.0


def _is_nvme(function: base.PciFunction) -> bool:
    return function.class_code == privileged.CLASS
