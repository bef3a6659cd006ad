# SPDX-License-Identifier: Apache-2.0

"""``os-acc provider``: this host's resource providers in Placement."""

from __future__ import annotations

import argparse
from collections import Counter

from os_acc import inspection, service
from os_acc.cmd import base, environment
from os_acc.host.pci_ids import ModelNames
from os_acc.objects.device import Provider
from os_acc.objects.mdev import function_of
from os_acc.placement import capacity
from os_acc.store.leases import Store


class ProviderList(base.Listing):
    """List the resource providers of this host's accelerators.

    Changes nothing, and needs no privileged helper.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        look = self.look()
        self.remark_if_none_named()
        models = self.models(look)
        used = Counter(
            lease.provider for lease in look.recorded.leases if not lease.erasure
        )
        return _COLUMNS, [
            (
                each.uuid,
                each.name,
                _model(look, each, models),
                each.device.resource_class,
                len(each.device.handles),
                used[each.uuid],
                each.device.numa_node,
                each.device.plugin,
                sorted(each.device.traits),
            )
            for each in sorted(
                look.inventory.providers.values(), key=lambda each: each.device.address
            )
        ]


class ProviderSync(base.Listing):
    """Publish this host's inventory in Placement; list the changes.

    Needs no privileged helper. Ends with 1 if a change was rejected; the others
    are made.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="List what would be changed, and change nothing.",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        if not parsed_args.dry_run:
            # Published names are recorded in the store.
            environment.check_owner(self.settings.state_path)
        look = self.look()
        self.remark_if_none_named()
        wanted = capacity.capacities(look.inventory.providers.values(), look.recorded)
        publisher = service.new_publisher(self.os_acc.config, self.settings)
        deadline = publisher.deadline()
        if parsed_args.dry_run:
            plan = publisher.difference(wanted, look.recorded.published_names, deadline)
            steps, refused = plan.steps, plan.refused
        else:
            store = Store.open(
                self.settings.state_path, inspection.STORE_SECONDS, deadline=deadline
            )
            store = store.until(deadline)
            inventory = look.inventory
            store.record_providers(
                inventory.classes,
                inventory.provider_origins,
                inventory.provider_plugins,
                inventory.mdev_totals,
            )
            found = publisher.sync(wanted, store, deadline)
            store.record_providers(found.recognized)
            steps, refused = found.done, found.refused
        self.is_failed = bool(refused)
        for refusal in refused:
            self.remark(f"refused: {refusal}")
        return ("Step", "Change"), [
            (number, str(step)) for number, step in enumerate(steps, start=1)
        ]


def _model(
    look: inspection.HostInspection, provider: Provider, models: ModelNames
) -> str | None:
    place = function_of(provider.device.address)
    function = look.inventory.host.functions.get(place) if place else None
    return models.short(function.identity) if function else None


_COLUMNS = (
    "UUID",
    "Name",
    "Model",
    "Resource Class",
    "Total",
    "Used",
    "NUMA Node",
    "Plugin",
    "Traits",
)
