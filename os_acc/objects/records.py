# SPDX-License-Identifier: Apache-2.0

"""Records of a host: a snapshot of all, and the names published to Placement."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Final, NamedTuple, Self

from os_acc.objects.lease import Lease, LeaseState
from os_acc.objects.mdev import DeviceAddress, MdevSlot, MdevType
from os_acc.objects.pci import PciAddress
from os_acc.objects.provider_names import ProviderOrigin
from os_acc.objects.region import ALL_VERIFIED, Region, UnverifiedRegions


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedState:
    """A snapshot of all records.

    :ivar damaged_claims: functions claimed by damaged records of leases.
    :ivar unverified_regions: regions whose contents are unverified.
    :ivar provider_origins: the origins of all providers ever offered, by uuid.
    :ivar provider_plugins: the plugin that last offered each provider, by uuid.
    :ivar store: the identity of the store.
    :ivar helper_claims: functions and slots that the privileged helper has taken for
        leases without a record, with the uuids of these leases.
    :ivar epoch: the last epoch of the store, which every new lease raises.
    :ivar mdev_totals: the units of each type of mediated devices when it was last
        offered.
    :ivar provider_classes: the resource class of each provider ever offered, by uuid.
    """

    leases: tuple[Lease, ...] = ()
    damaged_claims: tuple[DeviceAddress, ...] = ()
    unverified_regions: UnverifiedRegions = ALL_VERIFIED
    provider_origins: Mapping[str, ProviderOrigin] = field(default_factory=dict)
    provider_plugins: Mapping[str, str] = field(default_factory=dict)
    store: str = ""
    helper_claims: Mapping[DeviceAddress, str] = field(default_factory=dict)
    epoch: int = 0
    mdev_totals: Mapping[MdevType, int] = field(default_factory=dict)
    provider_classes: Mapping[str, str] = field(default_factory=dict)

    def rebuilding(self, region: Region) -> Lease | None:
        """Return a lease for which a rebuild has yet to program the region, if any.

        Until then no other guest may have the region: it could not be programmed. A
        lease that is being released is not programmed any more.
        """
        for lease in self.leases:
            if (
                lease.state in (LeaseState.PREPARING, LeaseState.HELD)
                and lease.programming is not None
                and lease.programming.is_pending
                and lease.uses_region(region)
            ):
                return lease
        return None

    @property
    def taken(self) -> frozenset[DeviceAddress]:
        """All functions and slots that are not free."""
        return self.leased.union(self.damaged_claims, self.helper_claims)

    @property
    def leased(self) -> frozenset[DeviceAddress]:
        """All functions that leases take from the host, and all leased slots."""
        return frozenset(each for lease in self.leases for each in lease.members)

    @property
    def outstanding_releases(self) -> Mapping[DeviceAddress, str]:
        """The functions and slots that plugins have to release or erase, each with its
        plugin.

        No other plugin may offer them: it would not know what was prepared, or what
        data of a guest is left.
        """
        return {
            address: lease.plugin
            for lease in self.leases
            if lease.needs_release or lease.needs_erase
            for address in lease.members
        }

    @property
    def leased_in_parts(self) -> Mapping[PciAddress, DeviceAddress]:
        """The PFs with leased VFs, each with one such VF or a slot of it.

        A reboot may have moved a PF: the helper knows it by its serial number.
        """
        places = {
            uuid: lease.address
            for lease in self.leases
            if lease.physfns
            for uuid in lease.recorded_uuids
        }
        moved = {
            claimed: places[lease]
            for claimed, lease in self.helper_claims.items()
            if isinstance(claimed, PciAddress) and lease in places
        }
        at_plug = {pf: lease.address for lease in self.leases for pf in lease.physfns}
        return moved | at_plug

    @property
    def leased_parents(self) -> Mapping[PciAddress, MdevSlot]:
        """The PCI functions with leased mediated devices, each with one such slot."""
        return {
            parent: slot
            for slot in self.taken
            if isinstance(slot, MdevSlot) and (parent := slot.type.function) is not None
        }


class NameKind(enum.Enum):
    """The kind of a name in Placement."""

    RESOURCE_CLASS = "resource class"
    TRAIT = "trait"


class PlacementName(NamedTuple):
    """A resource class or a trait."""

    kind: NameKind
    text: str

    @property
    def is_custom(self) -> bool:
        """Whether it is custom and has to be created in Placement."""
        return self.text.startswith("CUSTOM_")

    def __str__(self) -> str:
        return f"{self.kind.value} {self.text}"


def classes(texts: Iterable[str]) -> frozenset[PlacementName]:
    """Return the names of resource classes."""
    return frozenset(PlacementName(NameKind.RESOURCE_CLASS, each) for each in texts)


def traits(texts: Iterable[str]) -> frozenset[PlacementName]:
    """Return the names of traits."""
    return frozenset(PlacementName(NameKind.TRAIT, each) for each in texts)


@dataclasses.dataclass(frozen=True, slots=True)
class PublishedNames:
    """The names in Placement that os_acc owns.

    :ivar assigned: the names of each provider, by its uuid. All others on the provider
        belong to other services.
    :ivar created: the names that os_acc created.
    :ivar in_use_at: when Placement last refused to delete one of these names because
        it is in use, in seconds since 1970.
    """

    assigned: Mapping[str, frozenset[PlacementName]] = field(default_factory=dict)
    created: frozenset[PlacementName] = frozenset()
    in_use_at: Mapping[PlacementName, int] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any(self.assigned.values()) or bool(self.created) or bool(self.in_use_at)

    def __or__(self, other: Self) -> PublishedNames:
        uuids = {*self.assigned, *other.assigned}
        return PublishedNames(
            {each: self.of(each) | other.of(each) for each in uuids},
            self.created | other.created,
            {**self.in_use_at, **other.in_use_at},
        )

    def __sub__(self, other: Self) -> PublishedNames:
        left = {each: self.of(each) - other.of(each) for each in self.assigned}
        return PublishedNames(
            {each: names for each, names in left.items() if names},
            self.created - other.created,
            {
                name: at
                for name, at in self.in_use_at.items()
                if name not in other.created
            },
        )

    def of(self, provider: str) -> frozenset[PlacementName]:
        """Return the names assigned to a provider."""
        return self.assigned.get(provider, frozenset())

    def texts(self, provider: str, kind: NameKind) -> frozenset[str]:
        """Return the traits, or the classes, assigned to a provider."""
        return frozenset(name.text for name in self.of(provider) if name.kind is kind)

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield (provider, kind, name) of each assigned name."""
        for provider, names in self.assigned.items():
            yield from ((provider, name.kind.value, name.text) for name in names)


NO_NAMES: Final = PublishedNames()
