# SPDX-License-Identifier: Apache-2.0

"""The state of each function that os_acc may use, and the reason for it."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from os_acc.objects.device import AttachHandle, Provider, RejectedDevice, RejectReason
from os_acc.objects.drivers import is_vfio_driver
from os_acc.objects.lease import Lease, LeaseState
from os_acc.objects.mdev import DeviceAddress, DeviceName, function_of, in_order
from os_acc.objects.pci import PciFunction

if TYPE_CHECKING:
    from os_acc.inspection import HostInspection


_Place: TypeAlias = DeviceAddress | DeviceName


class DeviceStatus(enum.Enum):
    """The state of a function, for operators."""

    FREE = "free"
    LEASED = "leased"
    PREPARING = "preparing"
    RELEASING = "releasing"
    ERASING = "erasing"
    QUARANTINED = "quarantined"
    UNKNOWN = "unknown"
    FAULTY = "faulty"
    REFUSED = "refused"


_OF_LEASE = {
    LeaseState.PREPARING: DeviceStatus.PREPARING,
    LeaseState.HELD: DeviceStatus.LEASED,
    LeaseState.RELEASING: DeviceStatus.RELEASING,
    LeaseState.ERASING: DeviceStatus.ERASING,
    LeaseState.QUARANTINED: DeviceStatus.QUARANTINED,
}


def shown_state(state: str) -> str:
    """Return the word for a state of a lease; any other stays."""
    found = {lease.value: shown.value for lease, shown in _OF_LEASE.items()}
    return found.get(state, state)


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceState:
    """One function.

    :ivar function: None if it has vanished.
    :ivar members: all functions that are attached together.
    :ivar main: the one of them that has the lease, or would get it.
    :ivar reason: the reason for the state, for operators; empty if obvious.
    """

    address: _Place
    state: DeviceStatus
    function: PciFunction | None
    provider: Provider | None
    lease: Lease | None
    members: tuple[_Place, ...]
    main: _Place
    reason: str

    @property
    def resource_class(self) -> str | None:
        """The resource class; None if the function was never offered."""
        if self.provider is not None:
            return self.provider.device.resource_class
        return self.lease.wanted.resource_class or None if self.lease else None


def device_states(look: HostInspection) -> tuple[DeviceState, ...]:
    """Return every function that is named, leased or claimed by a lost lease."""
    return _Survey(look).all()


class _Survey:
    """All that an inspection has about each address."""

    def __init__(self, look: HostInspection) -> None:
        self._inventory, self._recorded = look.inventory, look.recorded
        self._functions = look.inventory.host.functions
        self._leases: dict[_Place, Lease] = {
            address: lease
            for lease in look.recorded.leases
            for address in lease.members
        }
        self._offers: dict[_Place, tuple[Provider, AttachHandle]] = {
            address: (provider, handle)
            for provider in look.inventory.providers.values()
            for handle in provider.device.handles
            for address in handle.members
        }
        self._refused: dict[_Place, RejectedDevice] = {
            each.address: each for each in look.inventory.refused
        }
        #: The lost lease that claims a device, by the helper's records.
        self._claims: dict[_Place, str] = dict(look.recorded.helper_claims.items())

    def all(self) -> tuple[DeviceState, ...]:
        addresses: set[_Place] = {
            *(*self._leases, *self._offers, *self._refused, *self._claims),
            *self._recorded.damaged_claims,
        }
        return tuple(map(self._state, sorted(addresses, key=in_order)))

    def _state(self, address: _Place) -> DeviceState:
        lease = self._leases.get(address)
        provider, handle = self._offers.get(address, (None, None))
        if lease is not None:
            provider = self._inventory.providers.get(lease.provider, provider)
        given = lease or handle
        main = given.address if given else address
        return DeviceState(
            address=address,
            state=self._status(address),
            function=self._function(address),
            provider=provider,
            lease=lease,
            members=given.members if given else (address,),
            main=main,
            reason="; ".join(filter(None, self._reasons(address, main))),
        )

    def _function(self, address: _Place) -> PciFunction | None:
        """Return the function, or that of a mediated device's parent."""
        place = function_of(address)
        return self._functions.get(place) if place else None

    def _status(self, address: _Place) -> DeviceStatus:
        if address in self._leases:
            return _OF_LEASE[self._leases[address].state]
        refused = self._refused.get(address)
        if (
            address in self._recorded.damaged_claims
            or address in self._claims
            or _is_unknown(refused)
            or self._is_left_behind(address)
        ):
            return DeviceStatus.UNKNOWN
        if refused:
            return DeviceStatus.REFUSED
        return DeviceStatus.FAULTY if self._fault(address) else DeviceStatus.FREE

    def _fault(self, address: _Place) -> str:
        _provider, handle = self._offers.get(address, (None, None))
        return handle.fault if handle else ""

    def _is_left_behind(self, address: _Place) -> bool:
        """Return whether it is on VFIO although no guest can get it this way."""
        if address in self._leases or not self._is_on_vfio(address):
            return False
        if address in self._refused:
            return self._refused[address].reason is not RejectReason.NOVA_CLAIMS
        # Only the helper's record, or a damaged lease, knows a slot without its type.
        _provider, handle = self._offers.get(address, (None, None))
        # An offered device that is itself on VFIO is prebound.
        return handle is not None and not self._is_on_vfio(handle.address)

    def _is_on_vfio(self, address: _Place) -> bool:
        function = self._function(address)
        return function is not None and is_vfio_driver(function.driver)

    def _reasons(self, address: _Place, main: _Place) -> Iterator[str]:
        lease, refused = self._leases.get(address), self._refused.get(address)
        claim, fault = self._claims.get(address), self._fault(address)
        if lease:
            if lease.erasure:
                yield f"{lease.erased:.0%} erased after instance {lease.consumer_title}"
            yield lease.reason
        if address in self._recorded.damaged_claims:
            yield "the record of its lease is damaged"
        if claim and not _is_unknown(refused) and claim not in fault:
            yield f"claimed by lease {claim}, which the store has lost"
        if refused:
            yield str(refused)
        yield self._inventory.claimed.get(address, "")
        yield fault
        if self._is_left_behind(address) and not _is_unknown(refused):
            yield "on VFIO without a lease"
        if main != address:
            yield f"assigned with {main}"
        is_there = self._function(address) is not None
        if function_of(address) is None:
            # A virtual parent vanishes with its types: they are not offered then.
            is_there = address in self._offers or address in self._refused
        if not is_there:
            pf = next(iter(lease.physfns), None) if lease else None
            refusal = self._refused.get(pf) if pf else None
            yield (
                f"its PF {pf} has no VFs: os-acc device prepare --write makes them"
                if refusal and refusal.reason is RejectReason.NO_VFS
                else "no longer on this host"
            )
        yield str(self._inventory.host.unreadable.get(str(address), ""))


def _is_unknown(refused: RejectedDevice | None) -> bool:
    return refused is not None and refused.reason is RejectReason.UNKNOWN_STATE


def vfs_hint(refused: RejectedDevice) -> str:
    """Return how a function gets the VFs that ``num_vfs`` requests."""
    if refused.detail.endswith("no SR-IOV"):
        return "enable SR-IOV in the firmware of the card and of the host"
    if refused.detail.endswith("is bound to it"):
        return "bind its driver; then run 'os-acc device prepare --write'"
    if refused.detail.startswith("0 "):
        return "run 'os-acc device prepare --write'; a service makes them at its start"
    return "remove all VFs while no guest has one, or change num_vfs"


def quarantine(lease: Lease) -> str:
    """Return the sentence on a quarantined lease, which has the address once."""
    if lease.reason.startswith(str(lease.address)):
        return f"quarantined: {lease.reason}"
    return f"{lease.address} is quarantined: {lease.reason}"
