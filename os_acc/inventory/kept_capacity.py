# SPDX-License-Identifier: Apache-2.0

"""Reserve capacity for leased mediated devices that do not exist, as after a reboot.

Types of mediated devices share the capacity of their card, and so do those of vGPUs.
The next plug of a guest creates its device again. Until then free units of the other
types are faulty: the kernel would give a new guest the capacity.

Free units of the same type are not faulty: :mod:`.mdev_types` subtracts those that
leases need, and ``device_spec`` names no more VFs than a card has vGPUs of a type.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from os_acc.exception import HostStepFailed, is_exhaustion
from os_acc.host import mdev
from os_acc.host.pci import Card, Host
from os_acc.objects.device import AttachHandle, Device
from os_acc.objects.lease import Lease, LeaseState
from os_acc.objects.mdev import MdevSlot
from os_acc.objects.records import RecordedState

_KEPT: Final = (
    "has no capacity left: its card keeps it for leased devices that do not exist yet"
)

_Type: TypeAlias = str | int


def absent(
    root: str, host: Host, devices: Iterable[Device], recorded: RecordedState
) -> tuple[Lease, ...]:
    """Return the held leases whose devices do not exist, if a guest may take capacity.

    Nothing is read for a card without a free unit of another type.
    A plug that has not ended creates its device itself.
    """
    held = [
        (lease, place)
        for lease in recorded.leases
        if lease.state is LeaseState.HELD
        and lease.is_the_guests
        and (place := _place(host, lease.handle)) is not None
    ]
    if not held:
        return ()
    free: defaultdict[Card, set[_Type]] = defaultdict(set)
    for _, (at, kind) in _free(host, devices, recorded):
        free[at].add(kind)
    return tuple(
        lease
        for lease, (at, kind) in held
        if free[at] - {kind} and not _exists(root, lease)
    )


def keep(
    host: Host,
    devices: Sequence[Device],
    recorded: RecordedState,
    leases: Iterable[Lease],
) -> Sequence[Device]:
    """Return devices without the units that need the capacity of absent leases."""
    kept = {
        place for each in leases if (place := _place(host, each.handle)) is not None
    }
    if not kept:
        return devices
    faulty = {
        handle.address
        for handle, (at, kind) in _free(host, devices, recorded)
        if any(at == other and kind != its for other, its in kept)
    }
    return [
        dataclasses.replace(
            device,
            handles=tuple(
                dataclasses.replace(each, fault=_KEPT)
                if each.address in faulty
                else each
                for each in device.handles
            ),
        )
        for device in devices
    ]


def _free(
    host: Host, devices: Iterable[Device], recorded: RecordedState
) -> Iterator[tuple[AttachHandle, tuple[Card, _Type]]]:
    """Yield the free units that share capacity, each with its card and type."""
    taken = recorded.taken
    for device in devices:
        for handle in device.handles:
            place = _place(host, handle)
            if place and not handle.fault and taken.isdisjoint(handle.members):
                yield handle, place


def _place(host: Host, unit: AttachHandle) -> tuple[Card, _Type] | None:
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
