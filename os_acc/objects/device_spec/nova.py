# SPDX-License-Identifier: Apache-2.0

"""What Nova's own options claim; a device must not have two masters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from oslo_log import log as logging

from os_acc import exception
from os_acc.objects.claim import DeviceTags
from os_acc.objects.device_spec.parser import entry_of, objects_of
from os_acc.objects.device_spec.spec import (
    NOVA_HIGHEST_DOMAIN,
    DeviceSpec,
    DeviceSpecEntry,
)
from os_acc.objects.device_spec.tags import parse_tags
from os_acc.objects.pci import PciAddress

LOG = logging.getLogger(__name__)


def nova_claims(device_spec_values: Sequence[str]) -> DeviceSpec:
    """Read Nova's ``[pci] device_spec`` to see which devices are Nova's.

    Unknown keys are tags, as they are to Nova. What Nova itself would refuse
    is ignored with a warning: it claims nothing. Domains above FFFF never
    match, since Nova cannot express them.
    """
    entries = [
        entry for value in device_spec_values for entry in _readable_entries(value)
    ]
    return DeviceSpec(tuple(entries), highest_domain=NOVA_HIGHEST_DOMAIN)


def nova_numa_policies(alias_values: Sequence[str]) -> DeviceSpec:
    """The NUMA policies in Nova's ``[pci] alias``, by the devices that it names.

    Of two for one device the first is heard. An alias that names no product,
    and what Nova itself would refuse, says nothing of a device.
    """
    entries = []
    for value in alias_values:
        try:
            entries += [
                entry_of(
                    {key: spec[key] for key in ("vendor_id", "product_id")},
                    parse_tags({"numa_policy": spec["numa_policy"]}),
                )
                for spec in objects_of(value)
                if {"vendor_id", "product_id", "numa_policy"} <= spec.keys()
            ]
        except exception.InvalidDeviceSpec as error:
            LOG.warning("A value of Nova's [pci] alias is ignored: %s", error)
    return DeviceSpec(tuple(entries), highest_domain=NOVA_HIGHEST_DOMAIN)


def _readable_entries(value: object) -> Iterator[DeviceSpecEntry]:
    try:
        specs = objects_of(value)
    except exception.InvalidDeviceSpec as error:
        LOG.warning("A value of Nova's [pci] device_spec is ignored: %s", error)
        return
    for spec in specs:
        try:
            yield entry_of(spec, DeviceTags())
        except exception.InvalidDeviceSpec as error:
            LOG.warning("A part of Nova's [pci] device_spec is ignored: %s", error)


def nova_mdev_addresses(values: Sequence[str]) -> frozenset[PciAddress]:
    """The PCI functions in Nova's ``[mdev_*] device_addresses``.

    Other parents of mediated devices (``mtty_mtty``) are no PCI functions
    and left out.
    """
    addresses = set()
    for value in values:
        try:
            addresses.add(PciAddress.parse(value))
        except exception.InvalidPciAddress:
            continue
    return frozenset(addresses)
