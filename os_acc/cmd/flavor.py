# SPDX-License-Identifier: Apache-2.0

"""A flavor as ``openstack flavor show -f json`` prints it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from os_acc import exception

_HOW = "pass what 'openstack flavor show FLAVOR -f json' prints"
_MIB_PER_GIB = 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Amounts:
    """What Nova asks for with every server of a flavor.

    :ivar disk_gb: root, ephemeral and swap disk together, in GiB.
    """

    vcpus: int
    memory_mb: int
    disk_gb: int


@dataclasses.dataclass(frozen=True, slots=True)
class Flavor:
    """As far as it matters for request groups."""

    properties: Mapping[str, object] = dataclasses.field(default_factory=dict)
    amounts: Amounts | None = None


def read(printed: Any) -> Flavor:
    """A flavor out of JSON.

    :param printed: None for none.
    :raises InvalidInput: it is no flavor.
    """
    if printed is None:
        return Flavor()
    if not isinstance(printed, Mapping):
        raise exception.InvalidInput(
            f"{exception.show(printed)} is no flavor", hint=_HOW
        )
    properties = printed.get("properties")
    if not isinstance(properties, Mapping):
        raise exception.InvalidInput(
            f"the flavor's properties are {exception.show(properties)}", hint=_HOW
        )
    disk = _number(printed, "disk")
    disk += _number(printed, "OS-FLV-EXT-DATA:ephemeral")
    # In whole GiB, as Nova counts it.
    disk += -(-_number(printed, "swap") // _MIB_PER_GIB)
    return Flavor(
        properties, Amounts(_number(printed, "vcpus"), _number(printed, "ram"), disk)
    )


def _number(printed: Mapping[str, object], name: str) -> int:
    # No swap is printed as nothing at all by older clients.
    value = printed.get(name) or 0
    if type(value) is not int:
        raise exception.InvalidInput(
            f"the flavor's {name} is {exception.show(value)}, not a number", hint=_HOW
        )
    return value
