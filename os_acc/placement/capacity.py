# SPDX-License-Identifier: Apache-2.0

"""Total and reserved units of each provider, as Placement counts them."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from os_acc.objects.device import Provider
from os_acc.objects.lease import Lease
from os_acc.objects.mdev import DeviceAddress
from os_acc.objects.records import RecordedState


@dataclasses.dataclass(frozen=True, slots=True)
class Units:
    """The units of one resource class.

    :ivar total: the units that are free, leased or faulty.
    :ivar reserved: the units that are unavailable and in no allocation.
    """

    total: int
    reserved: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Capacity:
    """The units of one provider, to be published in Placement.

    :ivar provider: None if only leases of the device are left.
    :ivar units: units by resource class; none of them is zero.
    """

    uuid: str
    provider: Provider | None
    units: Mapping[str, Units]


def capacities(
    providers: Collection[Provider],
    recorded_state: RecordedState,
    unallocated: Collection[str] = (),
) -> tuple[Capacity, ...]:
    """Return the capacity to publish, in the order of the providers.

    A leased unit is counted in any state of its device: Placement holds an
    allocation of it. A unit whose release failed, or whose lease is spare, has no
    allocation, and is reserved until it is released. A unit that was leased with the
    command is not reserved: Placement may have an allocation of it, and the unit
    would count twice.

    :param unallocated: the uuids of accelerators that Placement has no allocation for;
        they are reserved as well.
    """
    offered = {each.uuid: each for each in providers}
    leased = _by_provider(providers, recorded_state.leases)
    taken = recorded_state.taken
    found = []
    for uuid, own in leased.items():
        provider = offered.get(uuid)
        if units := _units(provider, own, taken, unallocated):
            found.append(Capacity(uuid, provider, units))
    return tuple(found)


def _by_provider(
    providers: Collection[Provider], leases: Sequence[Lease]
) -> dict[str, list[Lease]]:
    """Return the leases by provider; one adopted by hand may have none."""
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
    provider: Provider | None,
    own: Sequence[Lease],
    taken: frozenset[DeviceAddress],
    unallocated: Collection[str],
) -> Mapping[str, Units]:
    totals: Counter[str] = Counter()
    reserved: Counter[str] = Counter()
    default = ""
    if provider is not None:
        default = provider.device.resource_class
        mine = {address for lease in own for address in lease.members}
        for handle in provider.device.handles:
            if mine.isdisjoint(handle.members):
                is_taken = not taken.isdisjoint(handle.members)
                totals[default] += 1
                reserved[default] += int(bool(handle.fault) or is_taken)
    for lease in own:
        name = lease.wanted.resource_class or default
        totals[name] += 1
        # The unit is not available, and no allocation counts it.
        reserved[name] += lease.is_unallocated or lease.request_uuid in unallocated
    found = {name: Units(total, reserved[name]) for name, total in totals.items()}
    return MappingProxyType(found)
