# SPDX-License-Identifier: Apache-2.0

"""The values of ``[os_acc] device_spec``, read strictly."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from os_acc import exception
from os_acc.objects.claim import DeviceTags
from os_acc.objects.device_spec.address import (
    LIMITS,
    Glob,
    Netdev,
    Place,
    hexadecimal,
    parse_glob,
    parse_regex,
)
from os_acc.objects.device_spec.spec import DeviceSpec, DeviceSpecEntry
from os_acc.objects.device_spec.tags import TAG_NAMES, parse_tags

_SELECTORS: Final = frozenset({"vendor_id", "product_id", "address", "devname"})
_NOVAS_TAGS: Final = frozenset(
    {
        "physical_network",
        "trusted",
        "remote_managed",
        "managed",
        "live_migratable",
        "one_time_use",
    }
)


def parse(values: Sequence[str]) -> DeviceSpec:
    """Read the option's values, each a JSON object or a list of them.

    Selectors are ``vendor_id``, ``product_id``, and ``address`` (text: glob;
    object: regular expressions, see :class:`.address.Regex`) or ``devname``;
    tags are those of :class:`.DeviceTags`.

    :raises InvalidDeviceSpec: a value cannot be understood completely.
    """
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise exception.InvalidDeviceSpec(
            f"device_spec is {exception.show(values)}, not a list of values"
        )
    return DeviceSpec(
        tuple(_entry(spec) for value in values for spec in objects_of(value, _no_twins))
    )


def objects_of(value: object, pairs_hook: Any = dict) -> list[dict[str, Any]]:
    """The JSON objects in one value of the option.

    :raises InvalidDeviceSpec: neither an object nor a list of objects.
    """
    if not isinstance(value, str):
        raise exception.InvalidDeviceSpec(
            f"device_spec has {exception.show(value)}, not text"
        )
    try:
        decoded = json.loads(value, object_pairs_hook=pairs_hook)
    except exception.InvalidDeviceSpec:
        raise
    except (ValueError, RecursionError) as error:
        raise exception.InvalidDeviceSpec(
            f"device_spec has {exception.show(value)}, which is not JSON: {error}"
        ) from error
    specs = decoded if isinstance(decoded, list) else [decoded]
    for spec in specs:
        if not isinstance(spec, dict):
            raise exception.InvalidDeviceSpec(
                f"device_spec has {exception.show(value)}",
                hint="each value has to be a JSON object or a list of objects",
            )
    return specs


def entry_of(spec: Mapping[str, Any], tags: DeviceTags) -> DeviceSpecEntry:
    """Read the selectors as Nova does.

    :raises InvalidDeviceSpec: where Nova would refuse them.
    """
    vendor = _identifier(spec, "vendor_id")
    product = _identifier(spec, "product_id")
    return DeviceSpecEntry(
        vendor=vendor, product=product, place=_place(spec), tags=tags
    )


def _identifier(spec: Mapping[str, Any], key: str) -> int | None:
    value = spec.get(key, "*")
    if not isinstance(value, str):
        raise exception.InvalidDeviceSpec(f"{key} is {exception.show(value)}, not text")
    return hexadecimal(key, value, 0xFFFF)


def _place(spec: Mapping[str, Any]) -> Place:
    address, devname = spec.get("address"), spec.get("devname")
    if address and devname:
        raise exception.InvalidDeviceSpec(
            f"device_spec names both address {exception.show(address)} and devname "
            f"{exception.show(devname)}",
            hint="leave out one of them",
        )
    if devname:
        if not isinstance(devname, str):
            raise exception.InvalidDeviceSpec(
                f"devname is {exception.show(devname)}, not text"
            )
        return Netdev(devname)
    if not address:
        return Glob()
    if isinstance(address, str):
        return parse_glob(address)
    if isinstance(address, dict):
        return parse_regex(address)
    raise exception.InvalidDeviceSpec(
        f"address is {exception.show(address)}, neither text nor an object"
    )


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _value in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise exception.InvalidDeviceSpec(
                f"device_spec has the key {exception.show(key)} twice"
            )
    return dict(pairs)


def _entry(spec: Mapping[str, Any]) -> DeviceSpecEntry:
    _check_keys(spec, _SELECTORS | TAG_NAMES)
    if not _SELECTORS & spec.keys():
        raise exception.InvalidDeviceSpec(
            f"device_spec {exception.show(spec)} names no device",
            hint='to take every device, say so with "address": "*"',
        )
    for key in ("address", "devname"):
        if key in spec and not spec[key]:
            raise exception.InvalidDeviceSpec(
                f"{key} is {exception.show(spec[key])}",
                hint="leave the key out where any will do",
            )
    if isinstance(spec.get("address"), dict):
        _check_keys(spec["address"], frozenset(LIMITS))
    return entry_of(spec, parse_tags(spec))


def _check_keys(spec: Mapping[str, Any], known: frozenset[str]) -> None:
    for key in spec:
        if key in known:
            continue
        hint = exception.did_you_mean(key, known)
        if key in _NOVAS_TAGS:
            hint = "this tag is for Nova's [pci] device_spec"
        raise exception.InvalidDeviceSpec(
            f"device_spec has the unknown key {exception.show(key)}", hint=hint
        )
