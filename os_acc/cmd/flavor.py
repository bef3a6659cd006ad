# SPDX-License-Identifier: Apache-2.0

"""Read a flavor as printed by ``openstack flavor show -f json``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from os_acc import exception

_HOW = "pass what 'openstack flavor show FLAVOR -f json' prints"
_MIB_PER_GIB = 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Amounts:
    """The standard resources that Nova requests for each server of a flavor.

    :ivar disk_gb: root, ephemeral and swap disk together, in GiB.
    """

    vcpus: int
    memory_mb: int
    disk_gb: int


@dataclasses.dataclass(frozen=True, slots=True)
class Flavor:
    """The parts of a flavor that matter for request groups."""

    properties: Mapping[str, object] = dataclasses.field(default_factory=dict)
    amounts: Amounts | None = None


def read(printed: Any) -> Flavor:
    """Read a flavor from JSON.

    :param printed: parsed JSON; None for no flavor.
    :raises InvalidInput: it is no flavor.
    """
    if printed is None:
        return Flavor()
    if not isinstance(printed, Mapping):
        raise exception.InvalidInput(
            f"{exception.show(printed)} is not a flavor", hint=_HOW
        )
    properties = printed.get("properties")
    if not isinstance(properties, Mapping):
        raise exception.InvalidInput(
            f"the flavor's properties are {exception.show(properties)}", hint=_HOW
        )
    disk = _number(printed, "disk")
    disk += _number(printed, "OS-FLV-EXT-DATA:ephemeral")
    # In whole GiB, as Nova rounds it.
    disk += -(-_number(printed, "swap") // _MIB_PER_GIB)
    return Flavor(
        properties, Amounts(_number(printed, "vcpus"), _number(printed, "ram"), disk)
    )


def _number(printed: Mapping[str, object], name: str) -> int:
    # Older clients print nothing for no swap.
    value = printed.get(name) or 0
    if type(value) is not int:
        raise exception.InvalidInput(
            f"the flavor's {name} is {exception.show(value)}, not a number", hint=_HOW
        )
    return value
