# SPDX-License-Identifier: Apache-2.0

"""Devices assigned by the operator to os_acc and to Nova.

The syntax of ``[os_acc] device_spec`` is that of Nova's ``[pci] device_spec``
(``nova/pci/devspec.py``), with tags of os_acc. Nova treats every unknown key as
a tag, so a misspelt selector matches every device; here an unknown key is an
error.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from oslo_log import log as logging

from os_acc import exception
from os_acc.objects import device_spec_tags, mdev
from os_acc.objects.device import DeviceTags
from os_acc.objects.device_spec_address import (
    LIMITS,
    Glob,
    Netdev,
    ParentName,
    Place,
    hexadecimal,
    parse_glob,
    parse_regex,
    text_of,
)
from os_acc.objects.pci import PciAddress, PciFunction, PciRole

LOG = logging.getLogger(__name__)

#: Nova cannot match a device in a higher domain.
NOVA_HIGHEST_DOMAIN: Final = 0xFFFF


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceSpecEntry:
    """One specification; ``vendor`` and ``product`` None match any."""

    vendor: int | None
    product: int | None
    place: Place
    tags: DeviceTags

    def matches(
        self,
        function: PciFunction,
        netdevs: Mapping[str, PciAddress],
        functions: Mapping[PciAddress, PciFunction],
    ) -> bool:
        """Return whether the entry matches the function, directly or by its PF.

        Vendor and product are always those of the function itself. An entry
        for the single address of a PF also matches the PF's VFs.
        """
        identity = function.identity
        if self.vendor not in (None, identity.vendor):
            return False
        if self.product not in (None, identity.product):
            return False
        if self.place.matches(function.address):
            return True
        single = self.place.single(netdevs)
        if single is None:
            return False
        if single == function.address:
            return True
        named = functions.get(single)
        is_pf = named is not None and named.role is PciRole.PF
        return is_pf and function.physfn == single


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceSpec:
    """Specifications in the given order.

    :ivar highest_domain: functions in a higher PCI domain never match.
    """

    entries: tuple[DeviceSpecEntry, ...] = ()
    highest_domain: int = LIMITS["domain"]

    @property
    def requests_vfs(self) -> bool:
        """Whether any entry requests the creation of VFs."""
        return any(entry.tags.num_vfs is not None for entry in self.entries)

    @property
    def interfaces(self) -> frozenset[str]:
        """The network interfaces named by entries."""
        places = (entry.place for entry in self.entries)
        return frozenset(each.name for each in places if isinstance(each, Netdev))

    @property
    def parent_names(self) -> frozenset[str]:
        """The virtual parents of mediated devices that entries name."""
        places = (entry.place for entry in self.entries)
        return frozenset(each.name for each in places if isinstance(each, ParentName))

    @property
    def resource_classes(self) -> frozenset[str]:
        """The resource classes that entries assign."""
        found = (entry.tags.resource_class for entry in self.entries)
        return frozenset(each for each in found if each)

    def match(
        self,
        function: PciFunction,
        netdevs: Mapping[str, PciAddress],
        functions: Mapping[PciAddress, PciFunction],
    ) -> DeviceTags | None:
        """Return the tags of the first entry that matches the function, or None.

        ``num_vfs`` is always None for a VF, which cannot have VFs.

        :param netdevs: the PCI function behind each network interface.
        :param functions: all PCI functions of the host.
        """
        if function.address.domain > self.highest_domain:
            return None
        for entry in self.entries:
            if entry.matches(function, netdevs, functions):
                tags = entry.tags
                if tags.num_vfs is not None and function.role is PciRole.VF:
                    tags = dataclasses.replace(tags, num_vfs=None)
                return tags
        return None

    def match_parent(self, name: str) -> DeviceTags | None:
        """Return the tags of the first entry for a virtual parent of mediated devices.

        :param name: the parent in ``/sys/class/mdev_bus``.
        """
        place = ParentName(name)
        return next((each.tags for each in self.entries if each.place == place), None)


@dataclasses.dataclass(frozen=True, slots=True)
class OperatorRules:
    """The operator's configuration of devices, in our options and in Nova's.

    :ivar nova_mdev_addresses: Nova's parents of mediated devices, by
        :func:`.mdev.nova_names`.
    :ivar nova_mdev_parents: the functions among them.
    :ivar max_uncorrectable_errors: those of a device that is offered; -1: any
        number.
    :ivar unmanaged: whether the caller attaches with ``managed='no'``.
    :ivar state_path: the directory with the refusals of plugins.
    """

    named: DeviceSpec
    nova: DeviceSpec
    nova_policies: DeviceSpec
    nova_mdev_addresses: frozenset[str]
    nova_mdev_parents: frozenset[PciAddress]
    nova_mdev_types: frozenset[str]
    max_uncorrectable_errors: int = -1
    unmanaged: bool = True
    state_path: str = ""


_PARENT: Final = "mdev_parent"
_SELECTORS: Final = frozenset(
    {"vendor_id", "product_id", "address", "devname", _PARENT}
)
_PARENT_KEYS: Final = frozenset(
    {
        *(_PARENT, "mdev_types", "resource_class", "traits", "numa_policy"),
        "live_migratable",
    }
)
_NOVAS_TAGS: Final = frozenset({"trusted", "remote_managed", "managed", "one_time_use"})


def parse(values: Sequence[str]) -> DeviceSpec:
    """Parse the option's values, each a JSON object or a list of objects.

    Selectors are ``vendor_id``, ``product_id``, and ``address`` (text: glob;
    object: regular expressions, see :class:`.device_spec_address.Regex`) or
    ``devname``; or else ``mdev_parent`` alone, a virtual parent of mediated devices.
    Tags are those of :class:`.DeviceTags`.

    :raises InvalidConfiguration: a value is not completely understood.
    """
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise exception.InvalidConfiguration(
            f"device_spec is {exception.show(values)}, not a list of values"
        )
    return DeviceSpec(
        tuple(_entry(spec) for value in values for spec in objects_of(value, _no_twins))
    )


def objects_of(value: object, pairs_hook: Any = dict) -> list[dict[str, Any]]:
    """Return the JSON objects in one value of the option.

    :raises InvalidConfiguration: neither an object nor a list of objects.
    """
    if not isinstance(value, str):
        raise exception.InvalidConfiguration(
            f"device_spec has {exception.show(value)}, not text"
        )
    try:
        decoded = json.loads(value, object_pairs_hook=pairs_hook)
    except exception.InvalidConfiguration:
        raise
    except (ValueError, RecursionError) as error:
        raise exception.InvalidConfiguration(
            f"device_spec has {exception.show(value)}, which is not JSON: {error}"
        ) from error
    specs = decoded if isinstance(decoded, list) else [decoded]
    for spec in specs:
        if not isinstance(spec, dict):
            raise exception.InvalidConfiguration(
                f"device_spec has {exception.show(value)}",
                hint="use a JSON object or a list of objects for each value",
            )
    return specs


def entry_of(spec: Mapping[str, Any], tags: DeviceTags) -> DeviceSpecEntry:
    """Parse the selectors as Nova does.

    :raises InvalidConfiguration: Nova would reject them.
    """
    vendor, product = (
        hexadecimal(key, text_of(key, spec.get(key, "*")), 0xFFFF)
        for key in ("vendor_id", "product_id")
    )
    return DeviceSpecEntry(vendor, product, _place(spec), tags)


def _place(spec: Mapping[str, Any]) -> Place:
    address, devname = spec.get("address"), spec.get("devname")
    if address and devname:
        raise exception.InvalidConfiguration(
            f"device_spec names both address {exception.show(address)} and devname "
            f"{exception.show(devname)}",
            hint="leave out one of them",
        )
    if devname:
        return Netdev(text_of("devname", devname))
    if not address:
        return Glob()
    if isinstance(address, str):
        return parse_glob(address)
    if isinstance(address, dict):
        return parse_regex(address)
    raise exception.InvalidConfiguration(
        f"address is {exception.show(address)}, neither text nor an object"
    )


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _value in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise exception.InvalidConfiguration(
                f"device_spec has the key {exception.show(key)} twice"
            )
    return dict(pairs)


def _entry(spec: Mapping[str, Any]) -> DeviceSpecEntry:
    _check_keys(spec, _SELECTORS | device_spec_tags.TAG_NAMES)
    if not _SELECTORS & spec.keys():
        raise exception.InvalidConfiguration(
            f"device_spec {exception.show(spec)} does not identify a device",
            hint='to select every device, use "address": "*"',
        )
    for key in ("address", "devname"):
        if key in spec and not spec[key]:
            raise exception.InvalidConfiguration(
                f"{key} is {exception.show(spec[key])}",
                hint="remove the key to match any value",
            )
    if isinstance(spec.get("address"), dict):
        _check_keys(spec["address"], frozenset(LIMITS))
    if _PARENT in spec:
        return _parent_entry(spec)
    return entry_of(spec, device_spec_tags.parse_tags(spec))


def _parent_entry(spec: Mapping[str, Any]) -> DeviceSpecEntry:
    """Parse an entry for a virtual parent, which has only some of the tags."""
    name = text_of(_PARENT, spec[_PARENT]).strip()
    _check_keys(spec, _PARENT_KEYS)
    if not mdev.is_name(name) or "mdev_types" not in spec:
        raise exception.InvalidConfiguration(
            f"device_spec {exception.show(spec)} does not name mediated devices",
            hint="use a name in /sys/class/mdev_bus, and the tag mdev_types",
        )
    tags = device_spec_tags.parse_tags(spec)
    return DeviceSpecEntry(None, None, ParentName(name), tags)


def _check_keys(spec: Mapping[str, Any], known: frozenset[str]) -> None:
    for key in spec:
        if key in known:
            continue
        hint = exception.did_you_mean(key, known)
        if key in _NOVAS_TAGS:
            hint = "this tag is for Nova's [pci] device_spec"
        raise exception.InvalidConfiguration(
            f"device_spec has the unknown key {exception.show(key)}", hint=hint
        )


def nova_claims(device_spec_values: Sequence[str]) -> DeviceSpec:
    """Parse Nova's ``[pci] device_spec`` to find the devices that Nova claims.

    Unknown keys are tags, as in Nova. A value that Nova would reject claims
    nothing and is ignored with a warning. Domains above FFFF never match, since
    Nova does not support them.
    """
    entries = [
        entry for value in device_spec_values for entry in _readable_entries(value)
    ]
    return DeviceSpec(tuple(entries), highest_domain=NOVA_HIGHEST_DOMAIN)


def nova_numa_policies(alias_values: Sequence[str]) -> DeviceSpec:
    """Return the NUMA policies in Nova's ``[pci] alias``, by device.

    The first policy for a device applies. Aliases without a product, and values
    that Nova would reject, are skipped.
    """
    entries = []
    for value in alias_values:
        try:
            entries += [
                entry_of(
                    {key: spec[key] for key in ("vendor_id", "product_id")},
                    device_spec_tags.parse_tags({"numa_policy": spec["numa_policy"]}),
                )
                for spec in objects_of(value)
                if {"vendor_id", "product_id", "numa_policy"} <= spec.keys()
            ]
        except exception.InvalidConfiguration as error:
            LOG.warning("Ignoring an invalid value of Nova's [pci] alias: %s", error)
    return DeviceSpec(tuple(entries), highest_domain=NOVA_HIGHEST_DOMAIN)


def _readable_entries(value: object) -> Iterator[DeviceSpecEntry]:
    try:
        specs = objects_of(value)
    except exception.InvalidConfiguration as error:
        LOG.warning("Ignoring an invalid value of Nova's [pci] device_spec: %s", error)
        return
    for spec in specs:
        try:
            yield entry_of(spec, DeviceTags())
        except exception.InvalidConfiguration as error:
            LOG.warning(
                "Ignoring an invalid part of Nova's [pci] device_spec: %s", error
            )
