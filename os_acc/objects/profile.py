# SPDX-License-Identifier: Apache-2.0

"""Device profiles: named sets of accelerators, as in Cyborg's API."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Final

from os_acc.objects.request import RequestGroup

#: The prefix of Nova's name for the n-th group of a profile in a request to Placement
#: (``get_device_profile_group_requester_id()`` in nova/accelerator/cyborg.py).
REQUESTER: Final = "device_profile_"
_SUFFIX: Final = re.compile(rf"{REQUESTER}(0|[1-9][0-9]{{0,8}})")


def index_of(suffix: str) -> int | None:
    """Return the index of the group with Nova's name; None: no such name."""
    found = _SUFFIX.fullmatch(suffix)
    return int(found[1]) if found else None


def suffix_of(index: int) -> str:
    """Return Nova's name for a group, by its index in the profile."""
    return f"{REQUESTER}{index}"


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileGroup:
    """One request group of a profile.

    :ivar index: its index in the profile, from 0; accelerator requests and Nova
        identify the group by it.
    :ivar properties: as in the profile, in its order.
    :ivar request: the parsed properties, with Nova's suffix for the group.
    """

    index: int
    properties: tuple[tuple[str, str], ...]
    request: RequestGroup

    @property
    def suffix(self) -> str:
        """Nova's name for the group, used in mappings of allocations."""
        return suffix_of(self.index)

    @property
    def accelerators(self) -> int:
        """The number of accelerators that it requests."""
        return sum(amount for _name, amount in self.request.resources)

    def extra_specs(self, suffix: str, namespace: str) -> Iterator[tuple[str, str]]:
        """Yield the group as extra specs of a flavor.

        :param suffix: the suffix of the group in the flavor.
        :param namespace: replaces the profile's namespace ``accel:``.
        """
        for key, value in self.properties:
            kind, _, name = key.partition(":")
            yield f"{namespace if kind == 'accel' else kind}{suffix}:{name}", value


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceProfile:
    """A device profile.

    :ivar uuid: canonical.
    :ivar groups: in the order of the profile.
    """

    name: str
    uuid: str
    description: str
    groups: tuple[ProfileGroup, ...]

    @property
    def accelerators(self) -> int:
        """The number of accelerator requests created from it: N groups of M each."""
        return sum(group.accelerators for group in self.groups)
