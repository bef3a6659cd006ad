# SPDX-License-Identifier: Apache-2.0

"""Who holds what: the record that survives every crash."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Self

from os_acc.objects.naming import ProviderOrigin
from os_acc.objects.numa import Affinity
from os_acc.objects.pci import PciAddress, PciIdentity
from os_acc.objects.region import NO_DOUBTS, Programming, Region, UnverifiedRegions
from os_acc.objects.request import AttachTarget


class LeaseState(enum.Enum):
    """How far a lease is.

    PREPARING is the intent: written before the host is touched, rolled back
    when its writer is gone. RELEASING rolls forward: after a failure that
    can pass, the release is retried. QUARANTINED waits for an operator.
    """

    PREPARING = "preparing"
    HELD = "held"
    RELEASING = "releasing"
    QUARANTINED = "quarantined"


class Owner(enum.Enum):
    """On whose behalf a lease was made."""

    NOVA = "nova"
    COMMAND = "command"


@dataclasses.dataclass(frozen=True, slots=True)
class PriorBinding:
    """How a function was bound before os_acc touched it; None: not at all."""

    address: PciAddress
    identity: PciIdentity
    driver: str | None
    driver_override: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class HelperRecord:
    """One function that the privileged helper has on its own record as taken.

    :ivar lease: uuid of the lease; 'unreadable' where the record is damaged.
    :ivar is_the_guests: whether it was taken for a guest, and not for the host.
    :ivar driver: the driver that it had before; None for none.
    :ivar driver_override: the override that it had before; None for none.
    """

    address: PciAddress
    lease: str
    is_the_guests: bool = True
    driver: str | None = None
    driver_override: str | None = None

    @classmethod
    def of(
        cls, parts: Sequence[int], lease: str, use: str, driver: str, override: str
    ) -> Self:
        """One line of the helper's list."""
        place, guest = PciAddress(*parts), use == "guest"
        return cls(place, lease, guest, driver or None, override or None)


@dataclasses.dataclass(frozen=True, slots=True)
class Lease:
    """One accelerator in the hands of one consumer.

    :ivar uuid: of the accelerator request; the entry that plug returns.
    :ivar consumer: the instance, or the migration while it is parked there.
    :ivar group: suffix of the request group it answers.
    :ivar provider: uuid of the resource provider.
    :ivar plugin: the plugin that offered the device.
    :ivar address: the function that the guest is given.
    :ivar prior: what to restore, for each member of the IOMMU group.
    :ivar request: digest of the whole request, the same for all its leases.
    :ivar request_size: how many leases answer that request; 0: not known.
    :ivar boot_id: the boot in which ``prior`` was read.
    :ivar epoch: number of the store's write that last changed this lease;
        the helper refuses a call that carries a lower one than it has seen.
    :ivar reason: why its release failed, or empty.
    :ivar programming: what its FPGA region has to hold; None: it has none.
    :ivar attach_target: who has it: only what is the guest's is on vfio-pci.
    :ivar affinity: how it stood to the guest when it was chosen; None where
        nobody said which cells the guest is in.
    :ivar physfns: the PFs of those of its functions that are VFs. Only the
        record knows them where the VFs have gone.
    :ivar profile: the name of the device profile that the group is of; '' where
        it is the flavor's own, or nobody said.
    """

    uuid: str
    consumer: str
    owner: Owner
    state: LeaseState
    group: str
    provider: str
    resource_class: str
    address: PciAddress
    iommu_group: int
    numa_node: int | None
    prior: tuple[PriorBinding, ...]
    request: str
    boot_id: str
    plugin: str = "pci"
    instance_name: str = ""
    project_id: str = ""
    request_size: int = 0
    epoch: int = 0
    reason: str = ""
    programming: Programming | None = None
    attach_target: AttachTarget = AttachTarget.VM
    affinity: Affinity | None = None
    physfns: tuple[PciAddress, ...] = ()
    profile: str = ""

    @property
    def is_the_guests(self) -> bool:
        """Whether the guest itself has it, by VFIO."""
        return self.attach_target is AttachTarget.VM

    @property
    def members(self) -> tuple[PciAddress, ...]:
        """Every function that this lease takes from the host."""
        return tuple(prior.address for prior in self.prior)

    def stands_on(self, region: Region) -> bool:
        """Whether its guest has a function of this region."""
        return (
            self.programming is not None and self.programming.region.key == region.key
        )

    @property
    def guest_writable(self) -> Region | None:
        """The region that its guest can program itself, as the host does."""
        if self.programming is None or not self.is_the_guests:
            return None
        region = self.programming.region
        if region.interface_id is None or region.card not in self.members:
            return None
        return region

    @property
    def is_unfinished(self) -> bool:
        """Whether an operation on it has begun and not ended."""
        return self.state in (LeaseState.PREPARING, LeaseState.RELEASING)

    @property
    def has_failed_release(self) -> bool:
        """Whether its consumer has left, and the host has not got the device back."""
        return self.state is LeaseState.QUARANTINED or (
            self.is_unfinished and bool(self.reason)
        )

    @property
    def is_half_programmed(self) -> bool:
        """Whether a plug may have left a host's card between two drivers."""
        return (
            not self.is_the_guests
            and self.programming is not None
            and self.state in (LeaseState.PREPARING, LeaseState.QUARANTINED)
        )


@dataclasses.dataclass(frozen=True, slots=True)
class RecordedState:
    """All that is recorded at one moment.

    :ivar unreadable: functions that damaged records of leases claim.
    :ivar unknown_regions: of which nobody knows what they hold.
    :ivar places: of all providers that were ever offered, by uuid.
    :ivar plugins: that offered each of them last, by uuid.
    :ivar store: the identity of the store that says so.
    :ivar claimed: functions that the privileged helper has taken for leases
        that are not recorded, with their uuids.
    """

    leases: tuple[Lease, ...] = ()
    unreadable: tuple[PciAddress, ...] = ()
    unknown_regions: UnverifiedRegions = NO_DOUBTS
    places: Mapping[str, ProviderOrigin] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )
    plugins: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )
    store: str = ""
    claimed: Mapping[PciAddress, str] = dataclasses.field(
        default_factory=lambda: MappingProxyType({})
    )

    @property
    def taken(self) -> frozenset[PciAddress]:
        """Every function that is not free."""
        return self.leased.union(self.unreadable, self.claimed)

    @property
    def leased(self) -> frozenset[PciAddress]:
        """Every function that a lease takes from the host."""
        return frozenset(each for lease in self.leases for each in lease.members)

    @property
    def leased_in_parts(self) -> Mapping[PciAddress, PciAddress]:
        """The PFs of which VFs are leased, each with one that is."""
        return MappingProxyType(
            {physfn: lease.address for lease in self.leases for physfn in lease.physfns}
        )
