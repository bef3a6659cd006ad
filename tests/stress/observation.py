# SPDX-License-Identifier: Apache-2.0

"""One look at host and store, between two steps of a history."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable, Mapping

from os_acc.attach.manager import Manager
from os_acc.objects.lease import Lease, LeaseState
from os_acc.testing import FakeKernel, FunctionState, Write


@dataclasses.dataclass(frozen=True)
class Sight:
    """Host and store at one moment, while no process changes them.

    :ivar groups: the IOMMU group of each function that is leased, and present.
    :ivar writes: the writes since the last observation.
    """

    leases: tuple[Lease, ...]
    states: Mapping[str, FunctionState]
    groups: Mapping[str, int]
    writes: tuple[Write, ...]

    @functools.cached_property
    def members(self) -> frozenset[str]:
        """The leased functions."""
        return frozenset(members(self.leases))

    @functools.cached_property
    def held(self) -> tuple[Lease, ...]:
        """The leases that plugs have returned to consumers."""
        return tuple(each for each in self.leases if each.state is LeaseState.HELD)


def take(manager: Manager, kernel: FakeKernel, seen: int) -> Sight:
    """Observe host and store.

    :param seen: number of the writes before.
    """
    leases = manager.store.leases()
    states = {each.address: each for each in kernel.snapshot()}
    return Sight(
        leases=leases,
        states=states,
        groups={each: _group(kernel, each) for each in members(leases) & states.keys()},
        writes=tuple(kernel.writes(seen)),
    )


def _group(kernel: FakeKernel, address: str) -> int:
    # Read directly: no process changes the host now, so that no lock is needed.
    link = kernel.path("sys/bus/pci/devices", address, "iommu_group")
    return int(os.path.basename(os.readlink(link)))


def members(leases: Iterable[Lease]) -> set[str]:
    """Return the functions of some leases."""
    return {str(address) for lease in leases for address in lease.members}
