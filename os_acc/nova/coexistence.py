# SPDX-License-Identifier: Apache-2.0

"""Checks that Nova's own options and those of os_acc can hold on one host.

os_acc does not offer a free device that Nova's options name (see
:mod:`os_acc.inventory.eligibility`). These checks concern the rest: errors that would
start a guest without its accelerators, or give one device to two servers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from nova.pci import whitelist
from oslo_config import cfg

from os_acc import conf, exception
from os_acc.nova import conversion
from os_acc.objects import device_spec, mdev
from os_acc.objects.api import AcceleratorEntry


def check_classes(config: cfg.ConfigOpts) -> None:
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
) -> None:
    """Check that Nova may give no leased device to another server.

    :param values: of ``[pci] device_spec``.
    :param devices: the PCI devices of the host, as Nova's resource tracker gets them.
    :param held: the accelerators of each consumer.
    :raises InvalidConfiguration: Nova's option names a leased device.
    """
    consumers = {
        entry["pci_id"]: consumer
        for consumer, entries in held.items()
        for entry in entries
        if "pci_id" in entry
    }
    claims = whitelist.Whitelist(values)
    by_address = {device["address"]: device for device in devices}
    for address in sorted(consumers.keys() & by_address.keys()):
        # A guest that gets the PF has the VFs, or ends them.
        parent = by_address[address].get("parent_addr")
        function_and_pf = by_address[address], by_address.get(parent)
        if any(each and claims.device_assignable(each) for each in function_and_pf):
            raise exception.InvalidConfiguration(
                f"[pci] device_spec names {address}, which os_acc has leased to "
                f"{consumers[address]}",
                hint="remove the device from [pci] device_spec until the consumer has "
                "released it",
            )
