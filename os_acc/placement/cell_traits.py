# SPDX-License-Identifier: Apache-2.0

"""Traits that name the NUMA cells of a device.

Nova's scheduler does not know the cells of accelerators; these traits publish them.
os-traits has none for this purpose.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Final

from os_acc.objects.device import Device

_PREFIX: Final = "CUSTOM_NUMA_CELL_"
_TRAIT: Final = re.compile(rf"{_PREFIX}(0|[1-9][0-9]{{0,8}})")


def described(device: Device) -> Device:
    """Return the device with a trait for each NUMA cell of its accelerators.

    A device without a cell in the kernel's view gets none.
    """
    nodes = {handle.numa_node for handle in device.handles} or {device.numa_node}
    found = frozenset(f"{_PREFIX}{node}" for node in nodes if node is not None)
    return dataclasses.replace(device, traits=device.traits | found)


def cells_of(traits: Iterable[str]) -> frozenset[int]:
    """Return the ids of the NUMA cells that these traits name."""
    return frozenset(
        int(match[1]) for trait in traits if (match := _TRAIT.fullmatch(trait))
    )


def published_of(traits: Iterable[str]) -> frozenset[str]:
    """Return the traits that name cells.

    They are os_acc's, also without a record: a device may have moved meanwhile.
    """
    return frozenset(filter(_TRAIT.fullmatch, traits))
