# SPDX-License-Identifier: Apache-2.0

"""Types of mediated devices that the operator named, and their units.

A unit is leased, free, or faulty: other mediated devices of the same parent, of this
host's own tools or of another type, use its capacity, or the privileged helper has it
on record for a lost lease. They are never touched. The total does not change with
them: it is the most that has been seen, and is read anew while there are no mediated
devices.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from types import MappingProxyType
from typing import Final, Self

from os_acc.host import mdev
from os_acc.host.mdev import MediatedDevice, TypeAttributes
from os_acc.host.pci import Card, Host
from os_acc.inventory.eligibility import claims_of_nova
from os_acc.inventory.evidence import HostEvidence
from os_acc.objects.device import (
    AttachHandle,
    DeviceTags,
    OfferedType,
    RejectedDevice,
    RejectReason,
)
from os_acc.objects.mdev import MdevSlot, MdevType, nova_names
from os_acc.objects.pci import PciFunction
from os_acc.objects.records import RecordedState

#: The only interface for which libvirt's XML, as Nova writes it, is right.
_DEVICE_API: Final = "vfio-pci"
# NVIDIA vGPU Software User Guide, "description" of a vGPU type.
_MAX_INSTANCE: Final = re.compile(r"\bmax_instance=([0-9]{1,4})\b", re.ASCII)
_NO_CAPACITY: Final = (
    "has no capacity left: other mediated devices of its parent use it"
)


@dataclasses.dataclass(frozen=True, slots=True)
class _NamedType:
    """A type that the operator named; without ``parent``, one of a virtual parent."""

    type: MdevType
    tags: DeviceTags
    parent: PciFunction | None


def offered_types(
    evidence: HostEvidence,
    virtual: Mapping[str, DeviceTags],
    recorded: RecordedState,
) -> Iterator[OfferedType | RejectedDevice]:
    """Yield the named types that can be offered, and the others with the reason.

    :param virtual: the tags of each virtual parent that the operator named.
    :raises HostStepFailed: the kernel reports an error.
    """
    named = list(_named(evidence, virtual))
    if not named:
        return
    devices = mdev.read_mdevs(evidence.root)
    in_use = _cards(evidence.host, devices)
    for each in named:
        refused = _rejection(evidence, each)
        attributes = mdev.read_type(evidence.root, each.type)
        if refused is None and attributes is not None:
            refused = _wrong_api(each.type, attributes)
        if refused is not None or attributes is None:
            yield refused or _missing(evidence.root, each.type)
            continue
        least = recorded.mdev_totals.get(each.type, 0)
        slots = _Slots.of(each.type, attributes, devices, recorded)
        if slots.total < least and _is_in_use(evidence, each.type, in_use):
            slots = dataclasses.replace(slots, total=least)
        yield OfferedType(
            each.type,
            each.parent,
            each.tags,
            attributes.title,
            attributes.description,
            tuple(_handles(each, slots)),
        )


def _named(
    evidence: HostEvidence, virtual: Mapping[str, DeviceTags]
) -> Iterator[_NamedType]:
    for address in sorted(evidence.named):
        tags = evidence.named[address]
        for name in tags.mdev_types:
            function = evidence.host.function(address)
            yield _NamedType(MdevType(str(address), name), tags, function)
    for parent, tags in sorted(virtual.items()):
        for name in tags.mdev_types:
            yield _NamedType(MdevType(parent, name), tags, None)


def _rejection(evidence: HostEvidence, named: _NamedType) -> RejectedDevice | None:
    if named.parent is None:
        return _claim_of_nova(evidence, named.type)
    claimed = claims_of_nova(evidence, named.parent)
    if claimed is not None:
        return dataclasses.replace(claimed, address=named.type)
    entire = {named.parent.address, named.parent.physfn} & evidence.taken
    if entire:
        address = next(iter(entire))
        return RejectedDevice(named.type, RejectReason.LEASED_WHOLE, str(address))
    return None


def _claim_of_nova(evidence: HostEvidence, kind: MdevType) -> RejectedDevice | None:
    """Reject a type of a virtual parent that Nova's own options claim."""
    if not evidence.rules.nova_virtual_parents.isdisjoint(nova_names(kind.parent)):
        return RejectedDevice(kind, RejectReason.NOVA_CLAIMS)
    names = mdev.type_names(evidence.root, kind.parent)
    offered = sorted(evidence.rules.nova_mdev_types.intersection(names))
    if not offered:
        return None
    detail = f"it offers {', '.join(offered)}"
    return RejectedDevice(kind, RejectReason.NOVA_CLAIMS, detail)


def _wrong_api(kind: MdevType, attributes: TypeAttributes) -> RejectedDevice | None:
    if attributes.device_api == _DEVICE_API:
        return None
    detail = f"device_api is {attributes.device_api or 'missing'}, not {_DEVICE_API}"
    return RejectedDevice(kind, RejectReason.NO_MDEV_TYPE, detail)


def _missing(root: str, kind: MdevType) -> RejectedDevice:
    names = mdev.type_names(root, kind.parent)
    detail = f"it offers {', '.join(names)}" if names else "it offers none"
    return RejectedDevice(kind, RejectReason.NO_MDEV_TYPE, detail)


def _cards(host: Host, devices: Iterable[MediatedDevice]) -> frozenset[Card | None]:
    """Return the cards of mediated devices; None: of a device that is not known."""
    return frozenset(host.card_of(each.type) if each.type else None for each in devices)


def _is_in_use(
    evidence: HostEvidence, kind: MdevType, in_use: Set[Card | None]
) -> bool:
    """Return whether mediated devices may use the capacity of a type.

    If none existed before ``available_instances`` was read (``in_use``), and none
    after, that is the total.
    """
    place = {None, evidence.host.card_of(kind)}
    if not place.isdisjoint(in_use):
        return True
    devices = mdev.read_mdevs(evidence.root)
    return not place.isdisjoint(_cards(evidence.host, devices))


@dataclasses.dataclass(frozen=True, slots=True)
class _Slots:
    """The units of a type.

    :ivar leased: the numbers of those that are leased, or were.
    :ivar lost: the lost leases of those that the helper has on record, by number.
    :ivar free: how many others can be had now.
    :ivar total: how many there are, unless more are leased.
    """

    leased: frozenset[int]
    lost: Mapping[int, str]
    free: int
    total: int

    @classmethod
    def of(
        cls,
        kind: MdevType,
        attributes: TypeAttributes,
        devices: Iterable[MediatedDevice],
        recorded: RecordedState,
    ) -> Self:
        """Count the units that a type has at least."""
        existing = {each.uuid for each in devices if each.type == kind}
        leased = frozenset(
            each.number
            for each in recorded.taken
            if isinstance(each, MdevSlot) and each.type == kind
        )
        # Leases whose mediated devices are not created yet, or not any more.
        begun = {
            lease.uuid
            for lease in recorded.leases
            if lease.slot is not None and lease.slot.type == kind
        }
        free = max(0, attributes.available - len(begun - existing))
        # At least one: the provider of a type stays while others use all capacity.
        total = max(
            1,
            len(existing) + attributes.available,
            _most(attributes.description),
        )
        lost = {
            each.number: lease
            for each, lease in recorded.helper_claims.items()
            if isinstance(each, MdevSlot) and each.type == kind
        }
        return cls(leased, MappingProxyType(lost), free, total)

    def numbers(self) -> list[int]:
        """Return the numbers of all slots: the leased ones, and the lowest others."""
        count = self.total - len(self.leased)
        lowest = (each for each in itertools.count() if each not in self.leased)
        return sorted([*self.leased, *itertools.islice(lowest, max(0, count))])

    def fault(self, number: int, *, has_capacity: bool) -> str:
        """Return why a unit can neither be had nor is leased; '' if it can, or is."""
        if number in self.lost:
            return f"claimed by lease {self.lost[number]}, which the store has lost"
        return "" if number in self.leased or has_capacity else _NO_CAPACITY


def _handles(named: _NamedType, slots: _Slots) -> Iterator[AttachHandle]:
    free = slots.free
    for number in slots.numbers():
        is_leased = number in slots.leased
        slot = MdevSlot(named.type, number)
        yield AttachHandle(
            address=slot,
            members=(slot,),
            iommu_group=None,
            numa_node=named.parent.numa_node if named.parent else None,
            numa_policy=named.tags.numa_policy,
            fault=slots.fault(number, has_capacity=free > 0),
        )
        free -= not is_leased


def _most(description: str) -> int:
    found = _MAX_INSTANCE.search(description)
    return int(found[1]) if found else 0
