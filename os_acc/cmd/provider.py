# SPDX-License-Identifier: Apache-2.0

"""``os-acc provider``: this host's resource providers in Placement."""

from __future__ import annotations

import argparse
from collections import Counter

from os_acc import inspection, service
from os_acc.cmd import base, environment
from os_acc.objects.device import Provider
from os_acc.objects.mdev import function_of, in_order
from os_acc.placement import capacity
from os_acc.store.leases import Store


class ProviderList(base.Listing):
    """List the resource providers of this host's accelerators.

    Changes nothing, and needs no privileged helper.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        look = self.look()
        self.remark_if_none_named()
        self.remark_missing_vfs(look)
        functions, models = look.inventory.host.functions, self.models(look)
        used = Counter(
            lease.provider for lease in look.recorded.leases if not lease.erasure
        )

        def model(provider: Provider) -> str | None:
            place = function_of(provider.device.address)
            function = functions.get(place) if place else None
            return models.short(function.identity) if function else None

        columns: base.Columns[Provider] = {
            "UUID": lambda each: each.uuid,
            "Name": lambda each: each.name,
            "Model": model,
            "Resource Class": lambda each: each.device.resource_class,
            "Total": lambda each: len(each.device.handles),
            "Used": lambda each: used[each.uuid],
            "NUMA Node": lambda each: each.device.numa_node,
            "Plugin": lambda each: each.device.plugin,
            "Traits": lambda each: sorted(each.device.traits),
        }
        found = look.inventory.providers.values()
        return base.table(
            columns, sorted(found, key=lambda each: in_order(each.device.address))
        )


class ProviderSync(base.Listing):
    """Publish this host's inventory in Placement; list the changes.

    Needs no privileged helper. Ends with 1 if a change was rejected; the others
    are made.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--dry-run",
            action="store_true",
            help="List what would be changed, and change nothing.",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        if not parsed_args.dry_run:
            # Published names are recorded in the store.
            environment.check_owner(self.settings.state_path)
        look = self.look()
        self.remark_if_none_named()
        found = capacity.capacities(look.inventory.providers.values(), look.recorded)
        publisher = service.new_publisher(self.os_acc.config, self.settings)
        deadline = publisher.deadline()
        if parsed_args.dry_run:
            plan = publisher.difference(found, look.recorded.published_names, deadline)
            changes, refused = plan.steps, plan.refused
        else:
            state_path, inventory = self.settings.state_path, look.inventory
            store = Store.open(state_path, inspection.STORE_SECONDS, deadline=deadline)
            store = store.until(deadline)
            store.record_providers(
                inventory.classes,
                inventory.provider_origins,
                inventory.provider_plugins,
                inventory.mdev_totals,
            )
            published = publisher.sync(found, store, deadline)
            store.record_providers(published.recognized)
            changes, refused = published.done, published.refused
        self.is_failed = bool(refused)
        for refusal in refused:
            self.remark(f"refused: {refusal}")
        return ("Step", "Change"), [
            (number, str(step)) for number, step in enumerate(changes, start=1)
        ]
