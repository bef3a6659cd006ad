# SPDX-License-Identifier: Apache-2.0

"""Device profiles: accelerators by a name, as Cyborg's API has them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Final

from os_acc.objects.request import RequestGroup

#: What Nova calls the n-th group of a profile in a request to Placement
#: (``get_device_profile_group_requester_id()`` in nova/accelerator/cyborg.py).
REQUESTER: Final = "device_profile_"
_SUFFIX: Final = re.compile(rf"{REQUESTER}(0|[1-9][0-9]{{0,8}})")


def index_of(suffix: str) -> int | None:
    """Which group of a profile Nova calls so; None: it is no such name."""
    found = _SUFFIX.fullmatch(suffix)
    return int(found[1]) if found else None


def suffix_of(index: int) -> str:
    """What Nova calls a group, by its place in the profile."""
    return f"{REQUESTER}{index}"


@dataclasses.dataclass(frozen=True, slots=True)
class ProfileGroup:
    """One request group of a profile.

    :ivar index: its place in the profile, from 0: accelerator requests and
        Nova know it by that.
    :ivar properties: as the profile has them, in its order.
    :ivar request: what they mean, with the suffix that Nova gives the group.
    """

    index: int
    properties: tuple[tuple[str, str], ...]
    request: RequestGroup

    @property
    def suffix(self) -> str:
        """What Nova calls the group, and what allocations are mapped by."""
        return suffix_of(self.index)

    @property
    def accelerators(self) -> int:
        """How many accelerators it asks for."""
        return sum(amount for _name, amount in self.request.resources)

    def extra_specs(self, suffix: str, namespace: str) -> Iterator[tuple[str, str]]:
        """The group as extra specs of a flavor.

        :param suffix: that the group has there.
        :param namespace: for what the profile has below ``accel:``.
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
        """How many accelerator requests are made of it: N groups of M each."""
        return sum(group.accelerators for group in self.groups)
