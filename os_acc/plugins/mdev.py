# SPDX-License-Identifier: Apache-2.0

"""Mediated devices, such as vGPUs: one provider for each type of each parent.

Documentation/driver-api/vfio-mediated-device.rst. The types of one parent share its
capacity; a unit for which none is left is reserved in its provider.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import os_traits

from os_acc.plugins import base, pci

# VGPU is Nova's own: Nova creates a mediated device for each allocation of it.
_RESOURCE_CLASS = "CUSTOM_ACCELERATOR_MDEV"


class MdevPlugin(base.PluginBase):
    """Every type that ``[os_acc] device_spec`` names and no other plugin takes."""

    contract_version: ClassVar[tuple[int, int]] = (1, 0)
    is_fallback: ClassVar[bool] = True

    def discover(self, candidates: base.Candidates) -> Iterable[base.Device]:
        for offered in candidates.mdev_types:
            parent = offered.parent
            yield base.Device(
                plugin=self.name,
                address=offered.type,
                identity=parent.identity if parent else None,
                resource_class=offered.tags.resource_class or _RESOURCE_CLASS,
                traits=offered.tags.traits | _traits(offered),
                handles=offered.handles,
                numa_node=parent.numa_node if parent else None,
                erasure=base.Erasure.REMOVAL,
            )


def _traits(offered: base.OfferedType) -> frozenset[str]:
    named = {str(os_traits.normalize_name(f"MDEV_{offered.type.name}"))}
    if offered.parent is not None:
        named.add(pci.id_trait(offered.parent.identity))
    return frozenset(named)
