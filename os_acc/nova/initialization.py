# SPDX-License-Identifier: Apache-2.0

"""The node's handle for the virt driver, also while os_acc cannot serve.

nova-compute has to start although the helper or the store is not available: servers
without accelerators do not need them. Until an attempt succeeds, the driver answers
from the store alone, withdraws the providers, and refuses servers with accelerators.

os_acc does not offer a free device that Nova's options name (see
:mod:`os_acc.inventory.eligibility`). The checks concern the rest: options that would
start a guest without its accelerators, or give one device to two servers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from nova.compute import provider_config
from nova.conf import CONF
from nova.pci import whitelist
from oslo_config import cfg
from oslo_log import log

import os_acc
from os_acc import conf, deadlines, exception
from os_acc.nova import conversion
from os_acc.objects import device_spec, mdev
from os_acc.objects.api import AcceleratorEntry, InstanceDict
from os_acc.objects.lease import Lease
from os_acc.store import snapshot, state_files

LOG = log.getLogger(__name__)


class DeferredNode:
    """The handle of a node that is initialized now, or later by a thread.

    :param name: Nova's name of the compute node.
    :param initialize: returns the handle, or raises.
    :param interval: seconds between two attempts.
    :param config: the configuration of os_acc; None: that of the process.
    """

    def __init__(
        self,
        name: str,
        initialize: Callable[[], os_acc.Node],
        interval: float,
        config: cfg.ConfigOpts | None = None,
    ) -> None:
        self._name, self._initialize, self._interval = name, initialize, interval
        self._config = config
        self._node: os_acc.Node | None = None
        self._failure: exception.OsAccError | None = None
        self._ended = threading.Event()
        # Nova has read these files as well, and reads them again at its next start.
        files = provider_config.get_provider_configs(
            CONF.compute.provider_config_location
        )
        self._added = {
            provider: frozenset[str]().union(*each["inventories"]["additional"])
            for provider, each in files.items()
            if each.get("inventories", {}).get("additional")
        }

    def start(self) -> None:
        """Initialize the node; repeat in a thread if os_acc cannot serve now.

        :raises InvalidConfiguration: an option has an invalid value.
        :raises DeviceStuck: there is no thread for the repetition.
        """
        if not self._attempt():
            deadlines.start(self._repeat)

    def stop(self) -> None:
        """End the thread after its attempt."""
        self._ended.set()

    def _attempt(self) -> bool:
        try:
            _check_classes(self._config or cfg.CONF)
            self._node = self._initialize()
        except exception.InvalidConfiguration:
            raise
        except exception.OsAccError as error:
            self._failure = error
            LOG.error("os_acc cannot serve; servers with accelerators fail: %s", error)
            return False
        LOG.info("os_acc serves the accelerators of node %s", self._name)
        return True

    def _repeat(self) -> None:
        while not self._ended.wait(self._interval):
            try:
                if self._attempt():
                    return
            except exception.InvalidConfiguration as error:
                self._failure = error
                LOG.error("os_acc is not initialized until a restart: %s", error)
                return

    def ready(self) -> os_acc.Node:
        """Return the node.

        :raises OsAccError: it cannot serve; the error of the last attempt.
        """
        if self._node is None:
            raise self._failure or exception.NotInitialized("os_acc is not initialized")
        return self._node

    def count_error(self) -> None:
        """Count an unforeseen error of a thread, for ``os-acc metrics``."""
        path = conf.Settings.load(self._config or cfg.CONF).state_path
        state_files.count_error(path)

    # -- answers without a node ----------------------------------------------------

    def attached(
        self, instance_info: InstanceDict | None = None
    ) -> dict[str, list[AcceleratorEntry]]:
        """See :func:`os_acc.attached`; the store answers also without a node."""
        if self._node is not None:
            return self._node.attached(instance_info)
        held = os_acc.recorded(self._config)
        if instance_info is None:
            return held
        consumer = instance_info["uuid"]
        return {consumer: held[consumer]} if consumer in held else {}

    def unerased(self) -> dict[str, str]:
        """Return the functions without a consumer that may have data of a guest.

        :returns: by address, who had it last.
        :raises StateUnavailable: the store cannot be read.
        """
        found = snapshot.read(conf.state_path(self._config or cfg.CONF))
        lost = "an instance of a lost lease"
        owners = {
            uuid: lease for lease in found.leases for uuid in lease.recorded_uuids
        }
        last = dict.fromkeys(map(str, found.damaged_claims), lost)
        for address, uuid in found.helper_claims.items():
            owner = owners.get(uuid)
            # Of a lease on record, only the PF of a VF that is gone has its data: any
            # other function may be its drive, or not.
            if owner is None or owner.physfns:
                last[str(address)] = _title(owner) if owner else lost
        for lease in found.leases:
            if lease.erasure:
                last |= dict.fromkeys(map(str, lease.functions), _title(lease))
        return last

    def owns_any(self, allocations: Mapping[str, Any]) -> bool:
        """See :func:`os_acc.owns_any`.

        Without a node, units that may be of an accelerator count.
        """
        if self._node is not None:
            return self._node.owns_any(allocations)
        return bool(conversion.accelerator_amounts(allocations))

    def update_provider_tree(
        self, provider_tree: Any, nodename: str, unallocated: Collection[str]
    ) -> None:
        """Publish the accelerators, or reserve them while os_acc cannot serve."""
        if self._node is not None:
            self._node.update_provider_tree(provider_tree, nodename, unallocated)
        else:
            os_acc.withdraw_providers(
                provider_tree,
                nodename,
                node_name=self._name,
                config=self._config,
                added=self._added,
            )


def _title(lease: Lease) -> str:
    return f"instance {lease.consumer_title}"


def _check_classes(config: cfg.ConfigOpts) -> None:
    """Check that the virt driver serves the classes of ``[os_acc] device_spec``.

    It leaves the resource classes of Nova and Neutron to Nova.

    :raises InvalidConfiguration: a class is not served.
    """
    named = device_spec.parse(conf.Settings.load(config).device_spec)
    for name in sorted(named.resource_classes):
        if not conversion.may_be_accelerator(name):
            raise exception.InvalidConfiguration(
                f"the virt driver leaves the resource_class {name} in [os_acc] "
                "device_spec to Nova",
                hint="use a class of your own (CUSTOM_..., not CUSTOM_PCI_...), FPGA "
                "or PGPU",
            )


def check_mdev_claims(
    types: Mapping[str, str],
    default: str | None,
    held: Mapping[str, Collection[AcceleratorEntry]],
) -> None:
    """Check that Nova may give no leased mediated device to another server.

    :param types: the type of each parent in ``[mdev_*] device_addresses``.
    :param default: the type of ``[devices] enabled_mdev_types`` without addresses.
    :param held: the accelerators of each consumer.
    :raises InvalidConfiguration: Nova's options name the parent of a leased one.
    """
    for consumer, entries in held.items():
        for info in (each["attach_handle_info"] for each in entries):
            kind, parent = info.get("asked_type"), info.get("parent", "")
            is_named = not mdev.nova_names(parent).isdisjoint(types)
            if kind is not None and (is_named or kind == default):
                raise exception.InvalidConfiguration(
                    f"[devices] enabled_mdev_types or [mdev_*] device_addresses name "
                    f"{parent}/{kind}, which os_acc has leased to {consumer}",
                    hint="remove it from Nova's options until the consumer has "
                    "released it",
                )


def check_claims(
    values: Sequence[str],
    devices: Iterable[Mapping[str, Any]],
    held: Mapping[str, Collection[AcceleratorEntry]],
    unerased: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Check that Nova may give no leased device, and no guest's data, to a server.

    :param values: of ``[pci] device_spec``.
    :param devices: the PCI devices of the host, as Nova's resource tracker gets them.
    :param held: the accelerators of each consumer.
    :param unerased: see :meth:`DeferredNode.unerased`.
    :raises InvalidConfiguration: Nova's option names a device of either.
    """
    messages = {
        each: f"[pci] device_spec names {each}, which os_acc has to erase after {last}"
        for each, last in unerased.items()
    } | {
        each: f"[pci] device_spec names {each}, which os_acc has leased to {consumer}"
        for consumer, entries in held.items()
        for entry in entries
        if (each := entry.get("pci_id"))
    }
    claims = whitelist.Whitelist(values)
    by_address = {device["address"]: device for device in devices}
    for address in sorted(messages.keys() & by_address.keys()):
        # A guest that gets the PF has the VFs, or ends them.
        parent = by_address[address].get("parent_addr")
        function_and_pf = by_address[address], by_address.get(parent)
        if any(each and claims.device_assignable(each) for each in function_and_pf):
            raise exception.InvalidConfiguration(
                messages[address],
                hint="remove the device from [pci] device_spec until the consumer has "
                "released it, and 'os-acc device list' shows it as free",
            )
