# SPDX-License-Identifier: Apache-2.0

"""``os-acc device migration``: whether the state of a device can be migrated."""

from __future__ import annotations

import argparse
import uuid
from typing import Final

from os_acc import exception
from os_acc.cmd import arguments, base
from os_acc.inventory import migration
from os_acc.objects.migration import MigrationSupport
from os_acc.store import state_files

#: Bits per second of the network in the estimate of the downtime.
_NETWORK: Final = 10_000_000_000


class DeviceMigration(base.Showing):
    """Ask VFIO whether the state of a device can be migrated.

    The free device, or another one of its provider, is plugged and unplugged, as for an
    instance. The answer holds for the model and the version of the driver. Ends with 1
    if VFIO gives none.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("address", **arguments.DEVICE, help="a free device")

    def take_action(self, parsed_args: argparse.Namespace) -> base.ShownObject:
        address = parsed_args.address
        manager = self.manager()
        inventory = manager.discover()
        provider = {
            handle.address: each
            for each in inventory.providers.values()
            for handle in each.device.handles
        }.get(address)
        if provider is None:
            raise exception.NotFound(
                f"{address} is not offered",
                kind=exception.ObjectKind.DEVICE,
                hint="see 'os-acc device list'",
            )
        place = manager.root, inventory.host, provider.device
        # Firmware, or an option of the driver, may have changed the answer.
        if subject := migration.subject_of_device(*place):
            earlier = inventory.migrations[provider.uuid]
            state_path = self.settings.state_path
            state_files.forget_migration(state_path, subject)
            consumer = {"uuid": str(uuid.uuid4())}
            specs = {f"resources:{provider.device.resource_class}": "1"}
            try:
                manager.plug(consumer, {"uuid": provider.uuid}, specs)
            except BaseException:
                if earlier is not None:
                    state_files.record_migration(state_path, subject, earlier)
                raise
            finally:
                manager.unplug(consumer)
            inventory = manager.discover()
        support = inventory.migrations[provider.uuid]
        self.is_failed = support is None
        found = text(support, address)
        return ("Address", "Live Migration"), (str(address), found)


def text(found: MigrationSupport | None, address: object) -> str:
    """Return the answer for an operator, with the downtime that its state takes."""
    if found is None:
        return f"not asked; os-acc device migration {address} asks a free device"
    if not found.is_migratable:
        return "no"
    if not found.size:
        return f"{', '.join(found.names)}; the size of its state is unknown"
    milliseconds = 1000 * 8 * found.size / _NETWORK
    return (
        f"{', '.join(found.names)}; {found.size} bytes of state while idle: "
        f"{milliseconds:.1f} ms at 10 Gbit/s"
    )
