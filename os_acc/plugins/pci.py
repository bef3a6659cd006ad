# SPDX-License-Identifier: Apache-2.0

"""Plain PCI functions and SR-IOV virtual functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from os_acc.objects.device import Device
from os_acc.plugins import base, cards


class PciPlugin(base.PluginBase):
    """One provider for each card; its functions are the capacity.

    Nothing erases mass storage, which is offered with ``allow_no_erase`` alone.
    """

    contract_version: ClassVar[tuple[int, int]] = (1, 0)
    is_fallback: ClassVar[bool] = True

    def discover(self, candidates: base.Candidates) -> Iterable[Device]:
        return cards.devices(self.name, candidates, candidates.usable, cards.offer)
