# SPDX-License-Identifier: Apache-2.0

"""Types of mediated devices that the operator named, and their units.

A unit is leased, free, or faulty. It is faulty if other mediated devices of its parent
(of this host's own tools, or of another type) use its capacity, or if the privileged
helper has it on record for a lost lease. os_acc never touches those other devices.
Faulty units count in the total.
While there are mediated devices, the total is the largest that has been seen; without
any, it is read from the kernel.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Final, TypeAlias

from os_acc.exception import HostStepFailed, is_exhaustion
from os_acc.host import mdev
from os_acc.host.mdev import MediatedDevice
from os_acc.host.pci import Card, Host
from os_acc.inventory.eligibility import HostEvidence, claims_of_nova
from os_acc.objects.device import (
    AttachHandle,
    Device,
    DeviceTags,
    OfferedType,
    RejectedDevice,
    RejectReason,
    with_faults,
)
from os_acc.objects.lease import Lease, LeaseState
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
_KEPT: Final = (
    "has no capacity left: its card keeps it for leased devices that do not exist yet"
)

# A type that the operator named; without a function, one of a virtual parent.
_Named: TypeAlias = tuple[MdevType, DeviceTags, PciFunction | None]
# The card that has the capacity of a unit, and the type of the unit.
_Capacity: TypeAlias = tuple[Card, str | int]


def offered_types(
    evidence: HostEvidence, recorded: RecordedState
) -> Iterator[OfferedType | RejectedDevice]:
    """Yield the named types that can be offered, and the others with the reason.

    :raises HostStepFailed: the kernel reports an error.
    """
    named = list(_named(evidence))
    if not named:
        return
    devices = mdev.read_mdevs(evidence.root)
    in_use = _cards(evidence.host, devices)
    for kind, tags, parent in named:
        refused = _claim(evidence, kind, parent)
        try:
            attributes = mdev.read_type(evidence.root, kind)
        except HostStepFailed as error:
            if is_exhaustion(error):
                raise
            yield RejectedDevice(kind, RejectReason.UNREADABLE, error.message)
            continue
        if refused is not None or attributes is None:
            yield refused or _missing(evidence.root, kind)
            continue
        if (api := attributes.device_api) != _DEVICE_API:
            detail = f"device_api is {api or 'missing'}, not {_DEVICE_API}"
            yield RejectedDevice(kind, RejectReason.NO_MDEV_TYPE, detail)
            continue
        existing = {each.uuid for each in devices if each.type == kind}
        stated = _MAX_INSTANCE.search(attributes.description)
        most = int(stated[1]) if stated else 0
        # At least one: the provider of a type stays while others use all capacity.
        total = max(1, len(existing) + attributes.available, most)
        least = recorded.mdev_totals.get(kind, 0)
        if total < least and _is_in_use(evidence, kind, in_use):
            total = least
        handles = tuple(
            AttachHandle(
                address=slot,
                members=(slot,),
                iommu_group=None,
                numa_node=parent.numa_node if parent else None,
                numa_policy=tags.numa_policy,
                live_migratable=tags.live_migratable,
                fault=fault,
            )
            for slot, fault in _slots(
                kind, total, attributes.available, existing, recorded
            )
        )
        yield OfferedType(
            kind, parent, tags, attributes.title, attributes.description, handles
        )


def _named(evidence: HostEvidence) -> Iterator[_Named]:
    for address in sorted(evidence.named):
        tags = evidence.named[address]
        for name in tags.mdev_types:
            function = evidence.host.functions[address]
            yield MdevType(str(address), name), tags, function
    spec = evidence.rules.named
    for parent in sorted(spec.parent_names):
        if (of_parent := spec.match_parent(parent)) is not None:
            for name in of_parent.mdev_types:
                yield MdevType(parent, name), of_parent, None


def _claim(
    evidence: HostEvidence, kind: MdevType, parent: PciFunction | None
) -> RejectedDevice | None:
    """Reject a type whose parent Nova's own options claim, or a lease as a whole."""
    if parent is not None:
        if (claimed := claims_of_nova(evidence, parent)) is not None:
            return dataclasses.replace(claimed, address=kind)
        entire = {parent.address, parent.physfn} & evidence.taken
        if not entire:
            return None
        return RejectedDevice(kind, RejectReason.LEASED_WHOLE, str(next(iter(entire))))
    if not nova_names(kind.parent).isdisjoint(evidence.rules.nova_mdev_addresses):
        return RejectedDevice(kind, RejectReason.NOVA_CLAIMS)
    names = mdev.type_names(evidence.root, kind.parent)
    offered = sorted(evidence.rules.nova_mdev_types.intersection(names))
    if not offered:
        return None
    detail = f"it offers {', '.join(offered)}"
    return RejectedDevice(kind, RejectReason.NOVA_CLAIMS, detail)


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


def _slots(
    kind: MdevType,
    total: int,
    available: int,
    existing: Set[str],
    recorded: RecordedState,
) -> Iterator[tuple[MdevSlot, str]]:
    """Yield the units of a type, each with its fault: '' if it is leased or free.

    They are the leased ones with their numbers, and others with the lowest numbers.

    :param existing: the UUIDs of the mediated devices of the type.
    """
    slots = (each for each in recorded.taken if isinstance(each, MdevSlot))
    leased = {each.number for each in slots if each.type == kind}
    # Leases whose mediated devices are not created yet, or not any more.
    begun = {
        lease.uuid
        for lease in recorded.leases
        if lease.slot is not None and lease.slot.type == kind
    }
    free = available - len(begun - existing)
    others = (each for each in itertools.count() if each not in leased)
    numbers = itertools.islice(others, max(0, total - len(leased)))
    for number in sorted([*leased, *numbers]):
        slot, fault = MdevSlot(kind, number), ""
        if slot in recorded.helper_claims:
            lost = recorded.helper_claims[slot]
            fault = f"claimed by lease {lost}, which the store has lost"
        elif number not in leased:
            fault = "" if free > 0 else _NO_CAPACITY
            free -= 1
        yield slot, fault


# -- capacity of leased devices that do not exist ----------------------------


def keep_capacity(
    root: str, host: Host, devices: Sequence[Device], recorded: RecordedState
) -> tuple[Sequence[Device], frozenset[str]]:
    """Reserve capacity for leased devices that do not exist, as after a reboot.

    Types of mediated devices share the capacity of their card, and so do those of
    vGPUs. The next plug of a guest creates its device again. Until then free units of
    the other types are faulty: the kernel would give a new guest the capacity. Free
    units of the same type are not: :func:`offered_types` subtracts those that leases
    need, and ``device_spec`` names no more VFs than a card has vGPUs of a type.

    Nothing is read for a card without a free unit of another type. A plug that has not
    ended creates its device itself.

    :returns: the devices, and the UUIDs of the held leases for which units are kept.
    """
    held = [
        (lease, capacity)
        for lease in recorded.leases
        if lease.state is LeaseState.HELD
        and lease.is_the_guests
        and (capacity := _capacity(host, lease.handle)) is not None
    ]
    if not held:
        return devices, frozenset()
    taken = recorded.taken
    free = [
        (handle.address, capacity)
        for device in devices
        for handle in device.handles
        if (capacity := _capacity(host, handle)) is not None
        and not handle.fault
        and taken.isdisjoint(handle.members)
    ]
    kinds: defaultdict[Card, set[str | int]] = defaultdict(set)
    for _, (card, kind) in free:
        kinds[card].add(kind)
    absent = {
        lease.uuid: (card, kind)
        for lease, (card, kind) in held
        if kinds[card] - {kind} and not _exists(root, lease)
    }
    faults = {
        address: _KEPT
        for address, (card, kind) in free
        if any(card == other and kind != its for other, its in absent.values())
    }
    if faults:
        devices = [
            dataclasses.replace(each, handles=with_faults(each.handles, faults))
            for each in devices
        ]
    return devices, frozenset(absent)


def _capacity(host: Host, unit: AttachHandle) -> _Capacity | None:
    """Return the card and the type of a unit; None: it shares no capacity."""
    address = unit.address
    if isinstance(address, MdevSlot):
        return host.card_of(address.type), address.type.name
    if unit.vgpu_type:
        return host.card_of(address), unit.vgpu_type
    return None


def _exists(root: str, lease: Lease) -> bool:
    """Return whether the device of a lease exists; one that is unreadable does not."""
    address = lease.address
    try:
        if isinstance(address, MdevSlot):
            found = mdev.read_mdev(root, lease.uuid)
            return found is not None and found.type == address.type
        return mdev.vgpu_type(root, address) == lease.handle.vgpu_type
    except HostStepFailed as error:
        if is_exhaustion(error):
            raise
        return False
