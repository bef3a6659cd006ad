# SPDX-License-Identifier: Apache-2.0

"""Tags of the values of ``[os_acc] device_spec``."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final

import os_resource_classes
import os_traits

from os_acc import exception
from os_acc.objects import mdev, qat
from os_acc.objects.device import DeviceTags
from os_acc.objects.drivers import AUTO, NVIDIA, VFIO_PCI, is_driver_name
from os_acc.objects.numa import NUMAPolicy
from os_acc.objects.request_group import PLACEMENT_NAME

_DECIMAL = re.compile(r"[0-9]{1,5}", re.ASCII)
#: TotalVFs is 16 bits wide (PCI Express, SR-IOV extended capability).
_MOST_VFS: Final = 0xFFFF
_VGPU_TYPE = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)

#: The keys that :func:`parse_tags` reads.
TAG_NAMES: Final = frozenset(field.name for field in dataclasses.fields(DeviceTags))


def parse_tags(spec: Mapping[str, Any]) -> DeviceTags:
    """Parse the tags; ignore other keys.

    Names are normalised as in Nova's ``pci_placement_translator``: upper case,
    with the prefix ``CUSTOM_`` unless they are standard; whitespace around a
    trait is ignored. Booleans may be text, like Nova's tags.

    :raises InvalidConfiguration: a tag has an invalid value.
    """
    return DeviceTags(
        resource_class=_resource_class(spec) if "resource_class" in spec else None,
        traits=_traits(spec) if "traits" in spec else frozenset(),
        num_vfs=_num_vfs(spec["num_vfs"]) if "num_vfs" in spec else None,
        prebound=boolean("prebound", spec.get("prebound", False)),
        allow_no_reset=boolean("allow_no_reset", spec.get("allow_no_reset", False)),
        numa_policy=_numa_policy(spec["numa_policy"])
        if "numa_policy" in spec
        else None,
        mdev_types=_mdev_types(spec["mdev_types"]) if "mdev_types" in spec else (),
        allow_no_erase=boolean("allow_no_erase", spec.get("allow_no_erase", False)),
        physical_network=_name_of_trait(spec, "physical_network"),
        function=_name_of_trait(spec, "function"),
        qat_services=_qat_services(spec) if "qat_services" in spec else None,
        vfio_driver=_vfio_driver(spec.get("vfio_driver", VFIO_PCI)),
        vgpu_type=_vgpu_type(spec["vgpu_type"]) if "vgpu_type" in spec else 0,
        trust_guest_contents=boolean(
            "trust_guest_contents", spec.get("trust_guest_contents", False)
        ),
    )


def _resource_class(spec: Mapping[str, Any]) -> str:
    given = text("resource_class", spec["resource_class"])
    name = given.upper()
    if name not in os_resource_classes.STANDARDS and not name.startswith("CUSTOM_"):
        name = str(os_resource_classes.normalize_name(given))
    return _checked("resource_class", given, name)


def _traits(spec: Mapping[str, Any]) -> frozenset[str]:
    given = [part.strip() for part in text("traits", spec["traits"]).split(",")]
    standard, _others = os_traits.check_traits(given)
    return frozenset(_trait(name, name in standard) for name in given)


def _trait(given: str, is_standard: bool) -> str:
    if is_standard:
        return given
    name = given.upper()
    if not name.startswith("CUSTOM_"):
        name = str(os_traits.normalize_name(given))
    return _checked("traits", given, name)


def text(tag: str, value: object) -> str:
    """Return the value of a tag that is text, stripped.

    :raises InvalidConfiguration: it is no text.
    """
    if not isinstance(value, str):
        raise exception.InvalidConfiguration(
            f"{tag} is {exception.show(value)}, not text"
        )
    return value.strip()


def _checked(tag: str, given: str, name: str) -> str:
    if not given or not PLACEMENT_NAME.fullmatch(name):
        raise exception.InvalidConfiguration(
            f"{tag} has {exception.show(given)}, which is not a valid "
            "name in Placement",
            hint="use at most 255 characters of A-Z, 0-9 and _",
        )
    return name


def _num_vfs(value: object) -> int:
    number = value
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        number = int(value)
    if type(number) is not int or not 1 <= number <= _MOST_VFS:
        raise exception.InvalidConfiguration(
            f"num_vfs is {exception.show(value)}, not a number from 1 to {_MOST_VFS}"
        )
    return number


def _numa_policy(value: object) -> NUMAPolicy:
    try:
        return NUMAPolicy(value)
    except ValueError as error:
        choices = [each.value for each in NUMAPolicy]
        raise exception.InvalidConfiguration(
            f"numa_policy is {exception.show(value)}",
            hint=exception.did_you_mean(value, choices),
        ) from error


def boolean(tag: str, value: object) -> bool:
    """Parse a tag that is true or false, also as text.

    :raises InvalidConfiguration: it is neither.
    """
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


def _mdev_types(value: object) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text("mdev_types", value).split(","))
    for name in found:
        if not mdev.is_name(name):
            raise exception.InvalidConfiguration(
                f"mdev_types has {exception.show(name)}, which is not a type of "
                "mediated devices",
                hint="use names in mdev_supported_types, separated by commas",
            )
    return tuple(dict.fromkeys(found))


def _name_of_trait(spec: Mapping[str, Any], tag: str) -> str | None:
    """Return a name that becomes a trait; ``null`` is none, as in Nova's tags."""
    if spec.get(tag) is None:
        return None
    name = text(tag, spec[tag])
    if not name.isprintable():
        raise exception.InvalidConfiguration(
            f"{tag} is {exception.show(name)}, which cannot be printed"
        )
    _checked(tag, name, str(os_traits.normalize_name(name)))
    return name


def _qat_services(spec: Mapping[str, Any]) -> str:
    given = text("qat_services", spec["qat_services"])
    choices = [each.value for each in qat.QatService]
    try:
        services = qat.parse_services(given)
    except ValueError as error:
        raise exception.InvalidConfiguration(
            f"qat_services is {exception.show(given)}",
            hint=f"use one or more of {', '.join(choices)}, with ; in between",
        ) from error
    if not qat.are_possible(services):
        raise exception.InvalidConfiguration(
            f"qat_services is {exception.show(given)}, which no device combines",
            hint="use dcc alone, or at most three of the others",
        )
    if "num_vfs" not in spec:
        raise exception.InvalidConfiguration(
            "qat_services is set without num_vfs",
            hint="add num_vfs: the services are set before the VFs are created",
        )
    return qat.services_text(services)


def _vfio_driver(value: object) -> str:
    found = text("vfio_driver", value)
    if not is_driver_name(found):
        raise exception.InvalidConfiguration(
            f"vfio_driver is {exception.show(value)}, not the name of a driver",
            hint=f"use {AUTO}, or a name in /sys/bus/pci/drivers",
        )
    if found == NVIDIA:
        raise exception.InvalidConfiguration(
            f"vfio_driver is {NVIDIA}",
            hint="set vgpu_type alone, to a number in nvidia/creatable_vgpu_types",
        )
    return found


def _vgpu_type(value: object) -> int:
    found = str(value) if type(value) is int else text("vgpu_type", value)
    if not _VGPU_TYPE.fullmatch(found):
        raise exception.InvalidConfiguration(
            f"vgpu_type is {exception.show(value)}, not the number of a type",
            hint="use a number in nvidia/creatable_vgpu_types of the VF",
        )
    return int(found)
