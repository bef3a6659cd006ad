# SPDX-License-Identifier: Apache-2.0

"""Leases: the accelerators of each consumer, their states, and what a crash leaves."""

from __future__ import annotations

import abc
import dataclasses
import enum
import operator
from collections.abc import Iterable, Sequence
from typing import Any, Final, Self

from os_acc.objects import instance
from os_acc.objects.device import AttachHandle
from os_acc.objects.drivers import VFIO_PCI, is_vfio_driver
from os_acc.objects.mdev import DeviceAddress, MdevSlot, MdevType
from os_acc.objects.numa import NO_POLICIES, Affinity, PolicySources
from os_acc.objects.pci import PciAddress, PciIdentity
from os_acc.objects.region import Programming, Region
from os_acc.objects.request_group import AttachTarget, GroupAllocation

#: The plugin of PCI functions whose devices have no region.
_WITHOUT_REGION: Final = "pci"
_ADDRESS: Final = operator.attrgetter("address")


class LeaseState(enum.Enum):
    """The state of a lease.

    PREPARING records the intent before the host is modified; it is rolled back
    once its writer is gone. RELEASING rolls forward: after a transient
    failure the release is retried. ERASING: the device is back on the host, and its
    plugin erases the data of the former consumer; the lease has no consumer any more.
    QUARANTINED waits for an operator.
    """

    PREPARING = "preparing"
    HELD = "held"
    RELEASING = "releasing"
    ERASING = "erasing"
    QUARANTINED = "quarantined"


class Owner(enum.Enum):
    """The origin of a lease."""

    NOVA = "nova"
    COMMAND = "command"


@dataclasses.dataclass(frozen=True, slots=True)
class PriorBinding:
    """The binding of a function before os_acc changed it; None: unbound."""

    address: PciAddress
    identity: PciIdentity
    driver: str | None
    driver_override: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class HelperRecord:
    """One function or slot on the privileged helper's own record.

    :ivar lease: uuid of the lease, and of a slot's mediated device; 'unreadable' if
        the record is damaged.
    :ivar is_the_guests: whether it was taken for a guest, not for the host.
    :ivar driver: its previous driver; None for none.
    :ivar driver_override: its previous override; None for none.
    :ivar eraser: the plugin that has to erase it; '' for none.
    :ivar releaser: the plugin that has to release it; '' for none.
    :ivar node: the compute node whose lease it is; '' if unknown.
    :ivar serial: of the function; '' if unknown.
    """

    address: DeviceAddress
    lease: str
    is_the_guests: bool = True
    driver: str | None = None
    driver_override: str | None = None
    eraser: str = ""
    releaser: str = ""
    node: str = ""
    serial: str = ""

    @classmethod
    def of(cls, parts: Sequence[Any], lease: str, use: str, *rest: str) -> Self:
        """Parse one line of the helper's list; ``rest`` begins with the driver."""
        driver, override, *others = rest
        place: DeviceAddress
        if len(parts) == 3:
            parent, kind, number = parts
            place = MdevSlot(MdevType(parent, kind), number)
        else:
            place = PciAddress(*parts)
        prior = driver or None, override or None
        return cls(place, lease, use == "guest", *prior, *others)


class Action(enum.Enum):
    """An action that a device needs before it is free.

    RELEASE: ``prepare`` of its plugin may have begun; only its ``release`` undoes it.
    ERASE: the device may have data of a consumer that only ``erase`` removes.
    """

    RELEASE = "release"
    ERASE = "erase"


@dataclasses.dataclass(frozen=True, slots=True)
class Guest:
    """The instance that a lease is for, as last passed to a plug.

    :ivar name: '' if unknown, as is ``project_id``.
    :ivar image_id: the image for which the contents of its region were decided; ''
        without a region, or if unknown.
    :ivar cells: the host's NUMA cells that it uses; empty: unknown.
    """

    name: str = ""
    project_id: str = ""
    image_id: str = ""
    cells: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class ErasureRecord:
    """The erasure of a device that is back on the host.

    :ivar consumer: the consumer whose data is erased.
    :ivar lease: the UUID of that consumer's lease, under which the privileged helper
        has the device on record until the first call of the erasure.
    :ivar done: the part of the erasure that is done, from 0.0 to 1.0.
    """

    consumer: str
    lease: str
    done: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LeaseView(abc.ABC):
    """The part of a lease that a plugin sees in a call.

    :ivar uuid: of the lease, and of its mediated device.
    :ivar consumer: the UUID of the instance, or of the migration that holds the lease;
        during an erasure that of the lease itself.
    :ivar wanted: the request group that it serves, and its provider. ``prepare`` and
        ``release`` are called if its ``attach_target`` is the guest, or if the plugin
        erases the device.
    :ivar handle: the device.
    :ivar prior: the binding to restore, for each member of the IOMMU group; empty for
        a mediated device.
    :ivar boot_id: the boot of the host in which ``prior`` was read, as in
        ``/proc/sys/kernel/random/boot_id``.
    :ivar guest: the instance.
    :ivar affinity: of the device to the guest's cells; None without cells.
    :ivar policies: the NUMA policies that apply to the device, by their source.
    :ivar physfns: the PFs of its VFs. After the VFs are removed only this record
        knows them.
    :ivar profile: the name of the device profile of its group; '' for a group of
        the flavor itself, or if unknown.
    :ivar created_at: when the consumer got the accelerator, in microseconds since
        1970, UTC; 0: not recorded yet. The lease of a device that replaces another
        one has the time of the replaced one.
    :ivar parent: the identity of a mediated device's parent; None: a virtual parent,
        or no mediated device.
    :ivar erasure: the erasure of the device, once it is back on the host.
    """

    uuid: str
    consumer: str
    wanted: GroupAllocation
    handle: AttachHandle
    prior: tuple[PriorBinding, ...]
    boot_id: str
    guest: Guest = Guest()
    affinity: Affinity | None = None
    policies: PolicySources = NO_POLICIES
    physfns: tuple[PciAddress, ...] = ()
    profile: str = ""
    created_at: int = 0
    parent: PciIdentity | None = None
    erasure: ErasureRecord | None = None

    @property
    @abc.abstractmethod
    def request_uuid(self) -> str:
        """The UUID of its accelerator request, and of the entry that plug returns.

        It stays with the request if the device is replaced, and thus the lease.
        """

    @property
    @abc.abstractmethod
    def region(self) -> Region | None:
        """The FPGA region, as it was when the lease was prepared; None: no region."""

    @property
    def address(self) -> DeviceAddress:
        """The function attached to the guest, or the slot of its mediated device."""
        return self.handle.address

    @property
    def functions(self) -> tuple[PciAddress, ...]:
        """All functions that the lease takes from the host."""
        return tuple(map(_ADDRESS, self.prior))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lease(LeaseView):
    """One accelerator held by one consumer, with the records of os_acc itself.

    :ivar plugin: the plugin that offered the device.
    :ivar request: fingerprint of the entire request, shared by all its leases.
    :ivar request_size: the number of leases of that request; 0: unknown.
    :ivar epoch: number of the store's write that last changed this lease;
        the helper rejects a call with a lower one than it has seen.
    :ivar reason: why its release failed, or empty.
    :ivar programming: the required contents of its FPGA region; None: no region.
    :ivar arq: the UUID of its accelerator request, if that is not its own; see
        :attr:`request_uuid`.
    :ivar is_spare: whether it serves no request: its device is to replace that of
        another lease, or was replaced. No allocation counts it.
    :ivar outstanding: the actions that its device needs before it is free; recorded
        before they can become necessary.
    :ivar never_held: whether its release began before a consumer got the device, which
        therefore has no data of one.
    :ivar peers: the functions that may be its device, which has to be erased and has no
        serial number: all of its model, for a VF of its PF's, at its last preparation.
        Otherwise none.
    """

    owner: Owner
    state: LeaseState
    request: str
    plugin: str = _WITHOUT_REGION
    request_size: int = 0
    epoch: int = 0
    reason: str = ""
    programming: Programming | None = None
    arq: str = ""
    is_spare: bool = False
    outstanding: tuple[Action, ...] = ()
    never_held: bool = False
    peers: tuple[PciAddress, ...] = ()

    @property
    def group(self) -> str:
        """The suffix of the request group that it serves."""
        return self.wanted.group_suffix

    @property
    def provider(self) -> str:
        """The UUID of the resource provider; '' if unknown."""
        return self.wanted.provider_uuid

    @property
    def driver(self) -> str:
        """The driver that the function attached to the guest has in the meantime."""
        return self.handle.driver

    @property
    def needs_release(self) -> bool:
        """Whether its plugin has to release the device."""
        return Action.RELEASE in self.outstanding

    @property
    def needs_erase(self) -> bool:
        """Whether its plugin has to erase the device."""
        return Action.ERASE in self.outstanding

    @property
    def erased(self) -> float:
        """The part of the erasure of its device that is done, from 0.0 to 1.0."""
        return self.erasure.done if self.erasure else 0.0

    @property
    def recorded_uuids(self) -> tuple[str, ...]:
        """The UUIDs under which the privileged helper may have the device on record."""
        return (self.uuid, self.erasure.lease) if self.erasure else (self.uuid,)

    def with_erased(self, part: float, **changes: Any) -> Self:
        """Return the lease of a device to erase, of which a part is erased."""
        assert self.erasure is not None
        erasure = dataclasses.replace(self.erasure, done=part)
        return dataclasses.replace(self, erasure=erasure, **changes)

    def needing(self, *actions: Action) -> Self:
        """Return the lease with more outstanding actions."""
        new = tuple(each for each in actions if each not in self.outstanding)
        return dataclasses.replace(self, outstanding=self.outstanding + new)

    def without(self, *actions: Action) -> Self:
        """Return the lease without some of its outstanding actions."""
        left = tuple(each for each in self.outstanding if each not in actions)
        return dataclasses.replace(self, outstanding=left)

    @property
    def request_uuid(self) -> str:
        return self.arq or self.uuid

    @property
    def region(self) -> Region | None:
        return self.programming.region if self.programming else None

    @property
    def consumer_title(self) -> str:
        """The UUID of the consumer and the name of the instance, for messages."""
        return instance.title(
            self.erasure.consumer if self.erasure else self.consumer, self.guest.name
        )

    @property
    def is_the_guests(self) -> bool:
        """Whether the guest itself uses it, through VFIO."""
        return self.wanted.attach_target is AttachTarget.VM

    @property
    def slot(self) -> MdevSlot | None:
        """The slot of its mediated device; None: it has a PCI function."""
        address = self.handle.address
        return address if isinstance(address, MdevSlot) else None

    @property
    def device_name(self) -> str:
        """The address of its function, or the UUID of its mediated device."""
        return str(self.address) if self.slot is None else self.uuid

    @property
    def members(self) -> tuple[DeviceAddress, ...]:
        """All functions that this lease takes from the host, or its slot."""
        slot = self.slot
        return self.functions if slot is None else (slot,)

    @property
    def eraser(self) -> str:
        """The plugin that has to erase its device; '': none."""
        return self.plugin if self.needs_erase else ""

    @property
    def releaser(self) -> str:
        """The plugin that has to release its device or slot; '': none."""
        return self.plugin if self.needs_release else ""

    def releasing(self) -> Self:
        """Return the lease in the state in which its release begins.

        A plug that programs a card for the host stays ``preparing``. By this state, a
        later release knows that the host has not used and rebound the card since.
        """
        is_plug = self.is_half_programmed
        state = LeaseState.PREPARING if is_plug else LeaseState.RELEASING
        never_held = self.never_held or self.state is LeaseState.PREPARING
        return dataclasses.replace(self, state=state, never_held=never_held)

    def over(self, uuid: str) -> Self:
        """Return the lease with which its device is erased.

        :param uuid: of that lease. An accelerator request may be bound again, under
            its UUID, before the erasure ends.
        """
        return dataclasses.replace(
            self,
            uuid=uuid,
            consumer=uuid,
            erasure=ErasureRecord(self.consumer, self.uuid),
            state=LeaseState.ERASING,
            reason="",
            arq="",
            is_spare=False,
            outstanding=(Action.ERASE,),
        )

    def driver_of(self, function: PciAddress) -> str:
        """Return the driver that a function of the lease has while a guest has it."""
        handle = self.handle
        return handle.driver if function == handle.address else VFIO_PCI

    @property
    def vfio_drivers(self) -> frozenset[str]:
        """The VFIO drivers that its functions have while its guest has them."""
        if not self.is_the_guests:
            return frozenset()
        return frozenset(filter(is_vfio_driver, map(self.driver_of, self.functions)))

    def uses_region(self, region: Region) -> bool:
        """Return whether its guest has a function of this region."""
        return self.region is not None and self.region.key == region.key

    @property
    def guest_writable(self) -> Region | None:
        """The region that its guest can program itself, as the host can."""
        region = self.region
        if region is None or not self.is_the_guests:
            return None
        is_writable = region.interface_id is not None and region.card in self.members
        return region if is_writable else None

    @property
    def has_unknown_region(self) -> bool:
        """Whether its region could not be read when the device was adopted."""
        return (
            self.programming is None
            and not self.provider
            and self.plugin != _WITHOUT_REGION
        )

    @property
    def is_unfinished(self) -> bool:
        """Whether an operation on it has started and not finished."""
        return self.state in (LeaseState.PREPARING, LeaseState.RELEASING)

    @property
    def has_failed_release(self) -> bool:
        """Whether its consumer is gone but the device is not restored."""
        return self.state is LeaseState.QUARANTINED or (
            self.is_unfinished and bool(self.reason)
        )

    @property
    def is_unallocated(self) -> bool:
        """Whether its unit is not available although no allocation counts it."""
        return self.has_failed_release or self.is_spare or bool(self.erasure)

    @property
    def is_of_request(self) -> bool:
        """Whether it counts as one of its consumer's present accelerators."""
        return self.state is not LeaseState.QUARANTINED and not (
            self.is_spare or self.erasure
        )

    @property
    def is_half_programmed(self) -> bool:
        """Whether a plug may have left a host's card between two drivers."""
        return (
            not self.is_the_guests
            and not self.erasure
            and self.programming is not None
            and self.state in (LeaseState.PREPARING, LeaseState.QUARANTINED)
        )


def latest(leases: Iterable[Lease], changed: Iterable[Lease]) -> tuple[Lease, ...]:
    """Return leases in their order, the changed ones (by UUID) in their new form."""
    new = {lease.uuid: lease for lease in changed}
    return tuple([new.get(lease.uuid, lease) for lease in leases])
