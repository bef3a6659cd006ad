# SPDX-License-Identifier: Apache-2.0

"""Inspection of a host without side effects."""

from __future__ import annotations

import dataclasses
import functools

from oslo_config import cfg

from os_acc import conf
from os_acc.host import health
from os_acc.inventory import discovery
from os_acc.objects import device_spec
from os_acc.objects.device import pci_functions_of
from os_acc.objects.device_spec import OperatorRules
from os_acc.objects.pci import function_named
from os_acc.plugins import loader
from os_acc.store import snapshot, state_files

#: Seconds that a transaction waits for other processes.
STORE_SECONDS = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class HostInspection:
    """The inventory, the store and the plugins, read without any change."""

    inventory: discovery.Inventory
    recorded: snapshot.StoreSnapshot
    plugins: loader.Plugins


def look(config: cfg.ConfigOpts, root: str) -> HostInspection:
    """Inspect the host without a helper, a replay, or the creation of files or VFs.

    :raises OsAccError: the options, the store or the host cannot be read.
    """
    settings = conf.Settings.load(config)
    recorded = snapshot.read(settings.state_path)
    loaded = loader.load(config, root, settings.enabled_plugins)
    named = rules(settings, unmanaged=True)
    scan = functools.partial(
        discovery.discover, root, named, loaded, settings.node_name, recorded
    )
    inventory = scan()
    found = pci_functions_of(inventory.providers.values())
    # What any user can read, and what a service has recorded.
    read = health.faults(root, found, named.max_uncorrectable_errors)
    faults = {**state_files.recorded_health(settings.state_path, root).faults, **read}
    if faults:
        inventory = scan(host=inventory.host, faults=faults)
    return HostInspection(inventory, recorded, loaded)


def rules(settings: conf.Settings, unmanaged: bool) -> OperatorRules:
    """Return the operator's rules for the devices of this host.

    :param unmanaged: see :func:`os_acc.initialize`.
    :raises InvalidConfiguration: an entry of ``device_spec`` is invalid.
    """
    addresses = settings.nova_mdev_addresses
    return OperatorRules(
        named=device_spec.parse(settings.device_spec),
        nova=device_spec.nova_claims(settings.nova_device_spec),
        nova_policies=device_spec.nova_numa_policies(settings.nova_aliases),
        nova_mdev_addresses=frozenset(addresses),
        nova_mdev_parents=frozenset(filter(None, map(function_named, addresses))),
        nova_mdev_types=frozenset(settings.nova_mdev_types),
        max_uncorrectable_errors=settings.max_uncorrectable_errors,
        unmanaged=unmanaged,
        state_path=settings.state_path,
    )
