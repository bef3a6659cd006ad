# SPDX-License-Identifier: Apache-2.0

"""The reason why a unit is not offered, and the remedy.

A scan has a reason for each named device that it rejects. The others are not named, are
not there, or belong to a unit of another address.
"""

from __future__ import annotations

from collections.abc import Iterator

from os_acc import exception
from os_acc.attach.manager import Manager
from os_acc.inventory.discovery import Inventory
from os_acc.objects import device_spec
from os_acc.objects.candidate import DeviceTags
from os_acc.objects.device import AttachHandle
from os_acc.objects.mdev import DeviceAddress, MdevSlot, MdevType
from os_acc.objects.pci import PciAddress


def error_of(
    manager: Manager, inventory: Inventory, address: DeviceAddress
) -> exception.NotFound:
    """Return the error for a unit that the inventory lacks."""
    name = address.type if isinstance(address, MdevSlot) else address
    for each in inventory.refused:
        if each.address == name:
            hint = "remove the cause: 'os-acc check' has the remedies"
            return _error(address, str(each), hint)
    if isinstance(address, MdevSlot):
        return _of_slot(manager, inventory, address)
    return _of_function(manager, inventory, address)


def _of_function(
    manager: Manager, inventory: Inventory, address: PciAddress
) -> exception.NotFound:
    host = inventory.host
    if address not in host.functions:
        unreadable = host.unreadable.get(str(address))
        reason = f"it is unreadable: {unreadable}" if unreadable else "there is none"
        return _error(
            address, reason, "compare the address with the output of 'lspci -D'"
        )
    for handle in _handles(inventory):
        if address in handle.members:
            return _error(
                address,
                f"it goes to a guest together with {handle.address}, in whose IOMMU "
                "group it is",
                f"check that one: --device {handle.address}",
            )
    tags = _tags(manager, inventory, address)
    if tags is None:
        return _error(
            address,
            "no entry of [os_acc] device_spec names it",
            f'add the entry {{"address": "{address}"}}, and its tags if it needs any',
        )
    if tags.mdev_types:
        return _error(
            address,
            "[os_acc] device_spec names its mediated devices",
            f"check one of them: --device {address}/{tags.mdev_types[0]}/0",
        )
    return _error(address, "no plugin offers it", "see 'os-acc device list'")


def _of_slot(
    manager: Manager, inventory: Inventory, slot: MdevSlot
) -> exception.NotFound:
    numbers = sorted(
        handle.address.number
        for handle in _handles(inventory)
        if isinstance(handle.address, MdevSlot) and handle.address.type == slot.type
    )
    if numbers:
        return _error(
            slot,
            f"{slot.type} has {len(numbers)} units, the last one is {numbers[-1]}",
            f"check another one: --device {slot.type}/{numbers[-1]}",
        )
    tags = _tags_of_parent(manager, inventory, slot.type)
    named = ", ".join(tags.mdev_types) if tags else ""
    what = f"only {named} of {slot.type.parent}" if named else "no type of its parent"
    key = "address" if slot.type.function else "mdev_parent"
    types = ", ".join([*(tags.mdev_types if tags else ()), slot.type.name])
    return _error(
        slot,
        f"[os_acc] device_spec names {what}",
        f'set the entry {{"{key}": "{slot.type.parent}", "mdev_types": "{types}"}}',
    )


def _error(address: DeviceAddress, reason: str, hint: str) -> exception.NotFound:
    return exception.NotFound(
        f"{address} is not offered: {reason}",
        hint=hint,
        kind=exception.ObjectKind.DEVICE,
    )


def _handles(inventory: Inventory) -> Iterator[AttachHandle]:
    for provider in inventory.providers.values():
        yield from provider.device.handles


def _spec(manager: Manager) -> device_spec.DeviceSpec:
    return device_spec.parse(manager.settings.device_spec)


def _tags(
    manager: Manager, inventory: Inventory, address: PciAddress
) -> DeviceTags | None:
    host = inventory.host
    function = host.functions.get(address)
    if function is None:
        return None
    return _spec(manager).match(function, host.netdevs, host.functions)


def _tags_of_parent(
    manager: Manager, inventory: Inventory, kind: MdevType
) -> DeviceTags | None:
    if kind.function is None:
        return _spec(manager).match_parent(kind.parent)
    return _tags(manager, inventory, kind.function)
