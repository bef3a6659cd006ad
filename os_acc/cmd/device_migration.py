# SPDX-License-Identifier: Apache-2.0

"""``os-acc device migration``: whether the state of a device can be migrated."""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Iterable
from typing import Final

from os_acc import exception
from os_acc.cmd import arguments, base
from os_acc.objects.device import Provider
from os_acc.objects.mdev import DeviceAddress
from os_acc.objects.migration import MigrationSupport

#: Bits per second of the network in the estimate of the downtime.
_NETWORK: Final = 10_000_000_000


class DeviceMigration(base.Showing):
    """Ask VFIO whether the state of a device can be migrated.

    The answer holds for the model and the version of the driver. If it is not recorded
    yet, the free device is plugged and unplugged, as for an instance.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("address", **arguments.DEVICE, help="a free device")

    def take_action(self, parsed_args: argparse.Namespace) -> base.ShownObject:
        address = parsed_args.address
        manager = self.manager()
        inventory = manager.discover()
        provider = _provider_of(inventory.providers.values(), address)
        if inventory.migrations[provider.uuid] is None:
            consumer = {"uuid": str(uuid.uuid4())}
            specs = {f"resources:{provider.device.resource_class}": "1"}
            manager.plug(consumer, {"uuid": provider.uuid}, specs)
            manager.unplug(consumer)
            inventory = manager.discover()
        found = text(inventory.migrations[provider.uuid], address)
        return ("Address", "Live Migration"), (str(address), found)


def _provider_of(providers: Iterable[Provider], address: DeviceAddress) -> Provider:
    for each in providers:
        if any(handle.address == address for handle in each.device.handles):
            return each
    raise exception.NotFound(
        f"{address} is not offered",
        kind=exception.ObjectKind.DEVICE,
        hint="see 'os-acc device list'",
    )


def text(found: MigrationSupport | None, address: object) -> str:
    """Return the answer for an operator, with the downtime that its state takes."""
    if found is None:
        return f"not asked; os-acc device migration {address} asks a free device"
    if not found.is_migratable:
        return "no"
    milliseconds = 1000 * 8 * found.size / _NETWORK
    return (
        f"{', '.join(found.names)}; {found.size} bytes of state: "
        f"{milliseconds:.1f} ms at 10 Gbit/s"
    )
