# SPDX-License-Identifier: Apache-2.0

"""Tags of the values of ``[os_acc] device_spec``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import os_resource_classes
import os_traits

from os_acc import exception
from os_acc.objects import mdev, qat
from os_acc.objects.device import DeviceTags
from os_acc.objects.device_spec_address import text_of
from os_acc.objects.drivers import AUTO, NVIDIA, is_driver_name
from os_acc.objects.numa import NUMAPolicy
from os_acc.objects.request_group import PLACEMENT_NAME

_DECIMAL = re.compile(r"[0-9]{1,5}", re.ASCII)
#: TotalVFs is 16 bits wide (PCI Express, SR-IOV extended capability).
_MOST_VFS: Final = 0xFFFF
_VGPU_TYPE = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)


def parse_tags(spec: Mapping[str, Any]) -> DeviceTags:
    """Parse the tags; ignore other keys.

    Names are normalised as in Nova's ``pci_placement_translator``: upper case,
    with the prefix ``CUSTOM_`` unless they are standard; whitespace around a
    trait is ignored. Booleans may be text, like Nova's tags.

    :raises InvalidConfiguration: a tag has an invalid value.
    """
    tags = {name: _PARSERS[name](name, spec[name]) for name in _PARSERS if name in spec}
    if "qat_services" in tags and "num_vfs" not in tags:
        raise exception.InvalidConfiguration(
            "qat_services is set without num_vfs",
            hint="add num_vfs: the services are set before the VFs are created",
        )
    return DeviceTags(**tags)


def _resource_class(tag: str, value: object) -> str:
    given = _text(tag, value)
    name = given.upper()
    if name not in os_resource_classes.STANDARDS and not name.startswith("CUSTOM_"):
        name = str(os_resource_classes.normalize_name(given))
    return _checked(tag, given, name)


def _traits(tag: str, value: object) -> frozenset[str]:
    given = [part.strip() for part in _text(tag, value).split(",")]
    standard, others = os_traits.check_traits(given)
    return frozenset(standard) | {_custom_trait(tag, each) for each in others}


def _custom_trait(tag: str, given: str) -> str:
    name = given.upper()
    if not name.startswith("CUSTOM_"):
        name = str(os_traits.normalize_name(given))
    return _checked(tag, given, name)


def _text(tag: str, value: object) -> str:
    return text_of(tag, value).strip()


def _checked(tag: str, given: str, name: str) -> str:
    if not given or not PLACEMENT_NAME.fullmatch(name):
        raise exception.InvalidConfiguration(
            f"{tag} has {exception.show(given)}, which is not a valid "
            "name in Placement",
            hint="use at most 255 characters of A-Z, 0-9 and _",
        )
    return name


def _num_vfs(tag: str, value: object) -> int:
    number = value
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        number = int(value)
    if type(number) is not int or not 1 <= number <= _MOST_VFS:
        raise exception.InvalidConfiguration(
            f"{tag} is {exception.show(value)}, not a number from 1 to {_MOST_VFS}"
        )
    return number


def _numa_policy(tag: str, value: object) -> NUMAPolicy:
    try:
        return NUMAPolicy(value)
    except ValueError as error:
        choices = [each.value for each in NUMAPolicy]
        raise exception.InvalidConfiguration(
            f"{tag} is {exception.show(value)}",
            hint=exception.did_you_mean(value, choices),
        ) from error


def _boolean(tag: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        # Slow to import, and few tags are text.
        from oslo_utils import strutils

        try:
            return bool(strutils.bool_from_string(value, strict=True))
        except ValueError as error:
            raise exception.InvalidConfiguration(
                f"{tag} is {exception.show(value)}, neither true nor false"
            ) from error
    raise exception.InvalidConfiguration(
        f"{tag} is {exception.show(value)}, neither true nor false"
    )


def _mdev_types(tag: str, value: object) -> tuple[str, ...]:
    found = tuple(part.strip() for part in _text(tag, value).split(","))
    for name in found:
        if not mdev.is_name(name):
            raise exception.InvalidConfiguration(
                f"{tag} has {exception.show(name)}, which is not a type of "
                "mediated devices",
                hint="use names in mdev_supported_types, separated by commas",
            )
    return tuple(dict.fromkeys(found))


def _name_of_trait(tag: str, value: object) -> str | None:
    """Return a name that becomes a trait; ``null`` is none, as in Nova's tags."""
    if value is None:
        return None
    name = _text(tag, value)
    if not name.isprintable():
        raise exception.InvalidConfiguration(
            f"{tag} is {exception.show(name)}, which cannot be printed"
        )
    _checked(tag, name, str(os_traits.normalize_name(name)))
    return name


def _qat_services(tag: str, value: object) -> str:
    given = _text(tag, value)
    choices = [each.value for each in qat.QatService]
    try:
        services = qat.parse_services(given)
    except ValueError as error:
        raise exception.InvalidConfiguration(
            f"{tag} is {exception.show(given)}",
            hint=f"use one or more of {', '.join(choices)}, with ; in between",
        ) from error
    if not qat.are_possible(services):
        raise exception.InvalidConfiguration(
            f"{tag} is {exception.show(given)}, which no device combines",
            hint="use dcc alone, or at most three of the others",
        )
    return qat.services_text(services)


def _vfio_driver(tag: str, value: object) -> str:
    found = _text(tag, value)
    if not is_driver_name(found):
        raise exception.InvalidConfiguration(
            f"{tag} is {exception.show(value)}, not the name of a driver",
            hint=f"use {AUTO}, or a name in /sys/bus/pci/drivers",
        )
    if found == NVIDIA:
        raise exception.InvalidConfiguration(
            f"{tag} is {NVIDIA}",
            hint="set vgpu_type alone, to a number in nvidia/creatable_vgpu_types",
        )
    return found


def _vgpu_type(tag: str, value: object) -> int:
    found = str(value) if type(value) is int else _text(tag, value)
    if not _VGPU_TYPE.fullmatch(found):
        raise exception.InvalidConfiguration(
            f"{tag} is {exception.show(value)}, not the number of a type",
            hint="use a number in nvidia/creatable_vgpu_types of the VF",
        )
    return int(found)


_PARSERS: Final[Mapping[str, Callable[[str, object], Any]]] = {
    "resource_class": _resource_class,
    "traits": _traits,
    "num_vfs": _num_vfs,
    "prebound": _boolean,
    "allow_no_reset": _boolean,
    "numa_policy": _numa_policy,
    "mdev_types": _mdev_types,
    "allow_no_erase": _boolean,
    "physical_network": _name_of_trait,
    "function": _name_of_trait,
    "qat_services": _qat_services,
    "vfio_driver": _vfio_driver,
    "vgpu_type": _vgpu_type,
    "trust_guest_contents": _boolean,
    "live_migratable": _boolean,
}
#: The keys that :func:`parse_tags` reads.
TAG_NAMES: Final = frozenset(_PARSERS)
