# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""What has to be had together, and the least of it that cannot be."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from os_acc.numa.devices import DeviceRequest


@dataclasses.dataclass(frozen=True, slots=True)
class Need:
    """Some of a host's cells, of which the guest needs one.

    :ivar cells: the set of their places (:mod:`os_acc.numa.families`).
    """

    name: str
    cells: int


@dataclasses.dataclass(frozen=True, slots=True)
class Wants:
    """What a guest wants of all its cells together."""

    needs: tuple[Need, ...] = ()
    requests: tuple[DeviceRequest, ...] = ()

    def __contains__(self, part: Need | DeviceRequest) -> bool:
        return part in (self.needs if isinstance(part, Need) else self.requests)

    def without(self, part: Need | DeviceRequest) -> Wants:
        """All the rest."""
        return Wants(
            tuple(each for each in self.needs if each is not part),
            tuple(each for each in self.requests if each is not part),
        )


def least(conflict: Wants, tried: Callable[[Wants], Wants | None]) -> Wants:
    """Of what cannot be had together, so much that all but any one part can.

    Each attempt that fails tells what it failed for, and only that is looked at
    from there on. Needs are left out before requests are.

    :param tried: what cannot be had of something; None: all of it can, or
        nobody knows.
    """
    parts: tuple[Need | DeviceRequest, ...] = (*conflict.needs, *conflict.requests)
    for part in parts:
        if part in conflict and (fewer := tried(conflict.without(part))):
            conflict = fewer
    return conflict
