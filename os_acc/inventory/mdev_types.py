# SPDX-License-Identifier: Apache-2.0

"""Types of mediated devices that the operator named, and their units.

A unit is leased, free, or faulty: other mediated devices of the same parent, of this
host's own tools or of another type, use its capacity. They are never touched.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from os_acc.host import mdev
from os_acc.host.mdev import MediatedDevice, TypeAttributes
from os_acc.inventory.eligibility import HostEvidence, claims_of_nova
from os_acc.objects.candidate import DeviceTags, OfferedType
from os_acc.objects.device import AttachHandle, RejectedDevice, RejectReason
from os_acc.objects.lease import RecordedState
from os_acc.objects.mdev import MdevSlot, MdevType
from os_acc.objects.pci import PciFunction

#: The only interface for which libvirt's XML, as Nova writes it, is right.
_DEVICE_API: Final = "vfio-pci"
# NVIDIA vGPU Software User Guide, "description" of a vGPU type.
_MAX_INSTANCE: Final = re.compile(r"\bmax_instance=([0-9]{1,4})\b", re.ASCII)
_NO_CAPACITY: Final = (
    "has no capacity left: other mediated devices of its parent use it"
)


@dataclasses.dataclass(frozen=True, slots=True)
class _NamedType:
    """A type that the operator named.

    :ivar parent: the PCI function; None: a virtual parent.
    """

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
    for each in named:
        refused = _rejection(evidence, each)
        attributes = mdev.read_type(evidence.root, each.type)
        if refused is None and attributes is not None:
            refused = _wrong_api(each.type, attributes)
        if refused is not None or attributes is None:
            yield refused or _missing(evidence.root, each.type)
            continue
        yield OfferedType(
            each.type,
            each.parent,
            each.tags,
            attributes.title,
            attributes.description,
            tuple(_handles(each, attributes, devices, recorded)),
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
    if named.type.name in evidence.nova_mdev_types:
        return RejectedDevice(named.type, RejectReason.NOVA_CLAIMS)
    if named.parent is None:
        return None
    claimed = claims_of_nova(evidence, named.parent)
    if claimed is not None:
        return dataclasses.replace(claimed, address=named.type)
    whole = {named.parent.address, named.parent.physfn} & evidence.taken
    if whole:
        address = next(iter(whole))
        return RejectedDevice(named.type, RejectReason.LEASED_WHOLE, str(address))
    return None


def _wrong_api(kind: MdevType, attributes: TypeAttributes) -> RejectedDevice | None:
    if attributes.device_api == _DEVICE_API:
        return None
    detail = f"device_api is {attributes.device_api or 'missing'}, not {_DEVICE_API}"
    return RejectedDevice(kind, RejectReason.NO_MDEV_TYPE, detail)


def _missing(root: str, kind: MdevType) -> RejectedDevice:
    names = mdev.type_names(root, kind.parent)
    detail = f"it offers {', '.join(names)}" if names else "it offers none"
    return RejectedDevice(kind, RejectReason.NO_MDEV_TYPE, detail)


def _handles(
    named: _NamedType,
    attributes: TypeAttributes,
    devices: Sequence[MediatedDevice],
    recorded: RecordedState,
) -> Iterator[AttachHandle]:
    existing = {each.uuid for each in devices if each.type == named.type}
    leased = {
        each.number
        for each in recorded.taken
        if isinstance(each, MdevSlot) and each.type == named.type
    }
    # Leases whose mediated devices are not created yet, or not any more.
    begun = {
        lease.uuid
        for lease in recorded.leases
        if lease.slot is not None and lease.slot.type == named.type
    }
    free = max(0, attributes.available - len(begun - existing))
    # At least one: the provider of a type stays while others use all capacity.
    total = max(
        1,
        len(leased) + free,
        len(existing) + attributes.available,
        _most(attributes.description),
    )
    for number in _numbers(leased, total):
        is_leased = number in leased
        slot = MdevSlot(named.type, number)
        yield AttachHandle(
            address=slot,
            members=(slot,),
            iommu_group=None,
            numa_node=named.parent.numa_node if named.parent else None,
            numa_policy=named.tags.numa_policy,
            fault="" if is_leased or free > 0 else _NO_CAPACITY,
        )
        free -= not is_leased


def _numbers(leased: set[int], total: int) -> list[int]:
    """Return the numbers of all slots: the leased ones, and the lowest others."""
    lowest = (each for each in range(len(leased) + total) if each not in leased)
    others = [next(lowest) for _ in range(total - len(leased))]
    return sorted([*leased, *others])


def _most(description: str) -> int:
    found = _MAX_INSTANCE.search(description)
    return int(found[1]) if found else 0
