# SPDX-License-Identifier: Apache-2.0

"""The providers of devices, with their names, and those on record."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence, Set

from os_acc.host.pci import Host
from os_acc.objects import naming
from os_acc.objects.device import CardProvider, Device, OfferedType, Provider
from os_acc.objects.mdev import DeviceAddress, DeviceName, function_of
from os_acc.objects.naming import ProviderOrigin
from os_acc.objects.pci import PciAddress, PciFunction
from os_acc.objects.records import RecordedState


def origins(host: Host, devices: Sequence[Device]) -> Iterator[ProviderOrigin]:
    """Yield the origins of functions with a serial number, and of the devices."""
    for function in host.functions.values():
        # VFs may report the serial number of their PF.
        if function.identity.serial and function.physfn is None:
            yield naming.place(function.identity, function.address)
    for device in devices:
        named = function_of(device.address)
        if named is not None and device.identity is not None:
            yield naming.place(device.identity, named)
        if device.region is not None:
            yield naming.place(device.region.identity, device.region.card)


def provider(names: naming.ProviderNames, device: Device) -> Provider:
    """Return a device with its provider."""
    uuid, name = _name(names, device)
    if device.region is None:
        return Provider(uuid, name, device)
    region = device.region
    card = names.give(naming.of_card, region.identity, region.card)
    return Provider(uuid, name, device, CardProvider(*card))


def _name(names: naming.ProviderNames, device: Device) -> tuple[str, str]:
    """Return the UUID and the name of a device's provider."""
    if isinstance(device.address, PciAddress):
        assert device.identity is not None
        return names.give(naming.of_device, device.identity, device.address)
    kind, function = device.address, device.address.function
    if function is None or device.identity is None:
        return names.of_virtual(kind)
    name_of = functools.partial(naming.of_mdev_type, kind.name)
    return names.give(name_of, device.identity, function)


# -- providers on record -----------------------------------------------------


def still_there(
    origins: Mapping[str, ProviderOrigin], host: Host
) -> dict[str, PciAddress]:
    """Return the functions that recorded providers are named after, by UUID."""
    return {
        uuid: origin.address
        for uuid, origin in origins.items()
        if (function := host.functions.get(origin.address)) is not None
        and origin.is_of(function.identity, function.address)
    }


def owners(
    recorded: RecordedState, there: Mapping[str, PciAddress], enabled: Container[str]
) -> dict[DeviceAddress | DeviceName, str]:
    """Return the plugin with which each leased function or slot stays.

    So does the function that its provider is named after: two plugins would offer the
    provider. A plugin that has to release or erase the device owns it also if it is
    not enabled.

    :param there: see :func:`still_there`.
    """
    found: dict[DeviceAddress | DeviceName, str] = {}
    for lease in recorded.leases:
        is_enabled = bool(lease.provider) and lease.plugin in enabled
        if is_enabled and lease.provider in there:
            found[there[lease.provider]] = lease.plugin
        if is_enabled or lease.needs_release or lease.needs_erase:
            found |= dict.fromkeys(lease.members, lease.plugin)
    return found


def last_plugins(
    node_name: str,
    recorded: RecordedState,
    there: Mapping[str, PciAddress],
    types: Sequence[OfferedType],
) -> dict[DeviceName, set[str]]:
    """Return the plugins that last offered each function, and each of these types.

    :param there: see :func:`still_there`.
    """
    found: defaultdict[DeviceName, set[str]] = defaultdict(set)
    providers: defaultdict[PciAddress, list[str]] = defaultdict(list)
    for uuid, plugin in recorded.provider_plugins.items():
        if uuid in there:
            found[there[uuid]].add(plugin)
            providers[there[uuid]].append(uuid)
    for kind in types:
        origins = recorded.provider_origins
        if kind.parent is None:
            uuids = {naming.uuid_of(naming.of_virtual_type(node_name, kind.type))}
        else:
            near = providers.get(kind.parent.address, [])
            keys = {origins[uuid].key for uuid in near}
            uuids = _of_type(node_name, kind.type.name, kind.parent, keys)
        plugins = map(recorded.provider_plugins.get, uuids)
        found[kind.type] = {plugin for plugin in plugins if plugin is not None}
    return dict(found)


def _of_type(
    node_name: str, type_name: str, parent: PciFunction, keys: Set[str]
) -> set[str]:
    """Return the possible UUIDs of a type's provider, and of its parent's own.

    A plugin that has offered the entire parent may prepare its types as well.
    """
    by_place = naming.key_of_place(parent.identity, parent.address)
    return {
        naming.uuid_of(name)
        for key in (*keys, by_place)
        for name in (
            naming.of_mdev_type(type_name, node_name, key),
            naming.of_device(node_name, key),
        )
    }
