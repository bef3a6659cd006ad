# SPDX-License-Identifier: Apache-2.0

"""The providers of devices, with their names and the origins of these names."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from os_acc.host.view import Host
from os_acc.objects import naming
from os_acc.objects.device import CardProvider, Device, Provider
from os_acc.objects.mdev import MdevType
from os_acc.objects.naming import ProviderOrigin
from os_acc.objects.pci import PciAddress


def origins(host: Host, devices: Sequence[Device]) -> Iterator[ProviderOrigin]:
    """Yield the origins of functions with a serial number, and of the devices."""
    for function in host.functions.values():
        # VFs may report the serial number of their PF.
        if function.identity.serial and function.physfn is None:
            yield naming.place(function.identity, function.address)
    for device in devices:
        named = _named_function(device)
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


def _named_function(device: Device) -> PciAddress | None:
    """Return the function that a provider is named after; None: it is not on PCI."""
    address = device.address
    return address.function if isinstance(address, MdevType) else address
