# SPDX-License-Identifier: Apache-2.0

"""How much of what each provider has, as Placement counts it."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from os_acc.objects.device import Provider
from os_acc.objects.lease import Lease, RecordedState
from os_acc.objects.pci import PciAddress


@dataclasses.dataclass(frozen=True, slots=True)
class Units:
    """The units of one resource class.

    :ivar total: those that are free, leased or out of order.
    :ivar reserved: those that nobody can get and that no allocation counts.
    """

    total: int
    reserved: int = 0

    def __add__(self, other: Units) -> Units:
        return Units(self.total + other.total, self.reserved + other.reserved)


@dataclasses.dataclass(frozen=True, slots=True)
class Capacity:
    """What Placement has to hold of one provider.

    :ivar provider: None where nothing but leases is left of the device.
    :ivar units: for each resource class; none of them is without any.
    """

    uuid: str
    provider: Provider | None
    units: Mapping[str, Units]


def capacities(
    providers: Collection[Provider], standing: RecordedState
) -> tuple[Capacity, ...]:
    """What Placement has to hold, in the order of the providers.

    A leased unit is counted whatever has become of its device: Placement
    has an allocation of it. A unit whose release failed has none any more, and
    is reserved until the release has succeeded. Only Placement knows whether
    what a person has leased by the command is allocated; to reserve it as well
    would count it twice.
    """
    offered = {each.uuid: each for each in providers}
    leased = _by_provider(providers, standing.leases)
    taken = standing.taken
    found = (
        Capacity(uuid, offered.get(uuid), _units(offered.get(uuid), own, taken))
        for uuid, own in leased.items()
    )
    return tuple(each for each in found if each.units)


def _by_provider(
    providers: Collection[Provider], leases: Sequence[Lease]
) -> dict[str, list[Lease]]:
    """The leases on each provider; nothing is one that was adopted by hand."""
    found: dict[str, list[Lease]] = {each.uuid: [] for each in providers}
    place = {
        address: provider.uuid
        for provider in providers
        for handle in provider.device.handles
        for address in handle.members
    }
    for lease in leases:
        uuid = lease.provider or place.get(lease.address)
        if uuid is not None:
            found.setdefault(uuid, []).append(lease)
    return found


def _units(
    provider: Provider | None, own: Sequence[Lease], taken: frozenset[PciAddress]
) -> Mapping[str, Units]:
    units: defaultdict[str, Units] = defaultdict(lambda: Units(0))
    default = ""
    if provider is not None:
        default = provider.device.resource_class
        mine = {address for lease in own for address in lease.members}
        others = [
            handle
            for handle in provider.device.handles
            if mine.isdisjoint(handle.members)
        ]
        blocked = sum(
            bool(handle.fault) or not taken.isdisjoint(handle.members)
            for handle in others
        )
        units[default] += Units(len(others), blocked)
    for lease in own:
        # The allocation has gone with its guest; no other guest can get the unit.
        reserved = int(lease.has_failed_release)
        units[lease.resource_class or default] += Units(1, reserved)
    return MappingProxyType({name: each for name, each in units.items() if each.total})
