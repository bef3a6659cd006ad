# SPDX-License-Identifier: Apache-2.0

"""Network cards: an entire PF, or its VFs.

The operator names the physical network and the function of the card, which no
attribute of the kernel has. The plugin reads nothing itself, so that a card on
vfio-pci, without a network interface, is offered like any other.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import ClassVar

import os_traits

from os_acc.objects.device import Device, MatchedFunction
from os_acc.plugins import base, pci


class NicPlugin(base.PluginBase):
    """One provider for each PF; its VFs are the capacity."""

    contract_version: ClassVar[tuple[int, int]] = (1, 0)
    # The class code identifies the cards of every vendor: a plugin that knows one
    # of them comes first.
    is_fallback: ClassVar[bool] = True

    def discover(self, candidates: base.Candidates) -> Iterable[Device]:
        return pci.devices(self.name, candidates, candidates.usable, _offer)


def _offer(each: MatchedFunction) -> pci.Offer | None:
    # Some FPGAs have the class code of a network controller.
    if pci.family_of(each.function).kind != "NIC":
        return None
    return pci.offer(each, _traits(each.tags.physical_network, each.tags.function))


@functools.lru_cache
def _traits(*names: str | None) -> frozenset[str]:
    """Return the traits that Cyborg derives from these names."""
    return frozenset(str(os_traits.normalize_name(each)) for each in names if each)
