# SPDX-License-Identifier: Apache-2.0

"""Checks and copies of the values that plugins return: types, names and regions."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import os_resource_classes
import os_traits

from os_acc import exception
from os_acc.objects.candidate import OfferedType, UsableFunction
from os_acc.objects.device import AttachHandle, Device, Erasure, RejectedDevice
from os_acc.objects.instance import canonical_uuid
from os_acc.objects.mdev import DeviceName, MdevSlot, MdevType
from os_acc.objects.pci import PciAddress, PciIdentity
from os_acc.objects.region import Region, check_functions
from os_acc.objects.request import ACCELERATOR_CLASSES, PLACEMENT_NAME
from os_acc.objects.vfio_driver import is_vfio_driver

_T = TypeVar("_T")

#: The attributes that classes of errors add to that of their base.
_OF_ERRORS: Final = (
    (exception.HostError, ("address", "errno")),
    (exception.DeviceInUse, ("holders",)),
    (exception.ProgrammingFailed, ("errors",)),
    (exception.ServiceError, ("service",)),
    (exception.NotFound, ("kind",)),
)
_PLAIN: Final = frozenset({str, int, bool, type(None)})
_TEXTS: Final = frozenset({str})
_CUSTOM: Final = re.compile("CUSTOM_.")
# A serial number is part of the name of a provider, which Placement limits to 200.
_LONGEST_SERIAL: Final = 64


def check_region(region: object) -> None:
    """Check the types of a region's attributes, and its functions.

    :raises ValueError: one is wrong; see :class:`.Region`.
    """
    if not isinstance(region, Region):
        raise ValueError(f"{exception.show(region)} is not a Region")
    expect("Region.card", region.card, PciAddress)
    check_identity("Region.identity", region.identity)
    expect_number("Region.number", region.number)
    for name in ("interface_id", "function_id"):
        value = getattr(region, name)
        if value is not None and canonical_uuid(value) != value:
            raise ValueError(
                f"Region.{name} is {exception.show(value)}, which is no canonical UUID"
            )
    expect_all("Region.pci_functions", region.pci_functions, tuple, PciAddress)
    expect_all("Region.functions", region.functions, tuple, tuple)
    for pair in region.functions:
        if len(pair) != 2:
            raise ValueError(
                f"Region.functions has {exception.show(pair)}, not a pair of a PCI "
                "function and its function"
            )
        expect("Region.functions: the PCI function", pair[0], PciAddress)
    expect("Region.is_authenticated", region.is_authenticated, bool)
    check_functions(region)


def check_erasure(device: Device, *, erases: bool) -> None:
    """Check that accelerators can forget a guest's data as their device states.

    :param erases: the plugin has an ``erase()`` of its own.
    :raises ValueError: they cannot.
    """
    erasure = device.erasure
    expect("Device.erasure", erasure, Erasure)
    handles = device.handles
    is_mediated = any(isinstance(each.address, MdevSlot) for each in handles)
    # Each guest gets a new one, which its parent's driver alone can reset.
    if is_mediated and erasure in (Erasure.PLUGIN, Erasure.RESET):
        raise ValueError(f"Device.erasure is {erasure.name}, for mediated devices")
    if erasure is Erasure.PLUGIN and not erases:
        raise ValueError("Device.erasure is PLUGIN, but the plugin has no erase()")
    is_bound = not is_mediated and any(is_vfio_driver(each.driver) for each in handles)
    if erasure is Erasure.REMOVAL and is_bound:
        raise ValueError(
            "Device.erasure is REMOVAL, for a function that a VFIO driver takes"
        )


def check_shared(region: Region, handles: Sequence[AttachHandle]) -> None:
    """Check that a region names all functions that lead to it, if there are several.

    :raises ValueError: it does not.
    """
    missing = {each.address for each in handles}.difference(region.pci_functions)
    if missing and len(handles) > 1:
        raise ValueError(
            "Region.pci_functions does not have the handles "
            f"{exception.some(map(str, sorted(missing)), 4)}"
        )


def check_identity(what: str, identity: object) -> None:
    found = expect(what, identity, PciIdentity)
    for number in found.numbers:
        expect_number(what, number)
    for name, text in (("serial", found.serial), ("drive", found.drive)):
        expect_text(f"{what}.{name}", text)
        if len(text) > _LONGEST_SERIAL:
            raise ValueError(
                f"{what}.{name} is longer than {_LONGEST_SERIAL} characters"
            )


def check_placement_names(device: Device) -> None:
    """Check resource class and traits.

    Placement would reject them, and Nova's update of the whole node would fail.

    :raises ValueError: a name is invalid, or neither standard nor custom.
    """
    expect("Device.resource_class", device.resource_class, str)
    expect_all("Device.traits", device.traits, frozenset, str)
    for name in (device.resource_class, *sorted(device.traits)):
        if not PLACEMENT_NAME.fullmatch(name):
            raise ValueError(f"{exception.show(name)} is no valid name for Placement")
    wrong = [each for each in sorted(device.traits) if not _is_trait(each)]
    if not _is_class(device.resource_class):
        wrong.insert(0, device.resource_class)
    if wrong:
        raise ValueError(
            f"{exception.show(wrong[0])} is neither a standard name of Placement nor "
            "begins with CUSTOM_"
        )


def is_of_accelerators(resource_class: str) -> bool:
    """Return whether a class is no standard class of another service."""
    return bool(_CUSTOM.match(resource_class)) or resource_class in ACCELERATOR_CLASSES


def _is_class(name: str) -> bool:
    return bool(_CUSTOM.match(name)) or name in os_resource_classes.STANDARDS


@functools.lru_cache(4096)
def _is_trait(name: str) -> bool:
    return bool(_CUSTOM.match(name)) or not os_traits.check_traits([name])[1]


def plain(value: object) -> Any:
    """Return text, numbers and containers without methods of the vendor's own.

    The library uses accepted values for long, where a method that fails would end an
    operation. Values of other types are returned as they are, for the checks.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, frozenset):
        if kind is frozenset and _TEXTS.issuperset(map(type, value)):
            return value
        # Not even the iterator of a derived set is its own.
        return frozenset(map(plain, frozenset().union(value)))
    if isinstance(value, tuple):
        return tuple(map(plain, tuple.__iter__(value)))
    for own in (PciAddress, PciIdentity, Region):
        if isinstance(value, own):
            parts = (field.name for field in dataclasses.fields(own))
            return own(**{name: plain(getattr(value, name)) for name in parts})
    return value


def expect(what: str, value: object, kind: type[_T]) -> _T:
    """Return a value of this type.

    :param what: the attribute that has the value.
    :raises ValueError: it has another type; so do the functions below.
    """
    if not isinstance(value, kind):
        raise ValueError(f"{what} is {exception.show(value)}, not {_a(kind)}")
    return value


def expect_all(what: str, parts: Iterable[object], kind: type, of: type) -> None:
    """Check the type of a container and of all that it has."""
    if not isinstance(parts, kind):
        shown = exception.show(parts)
        raise ValueError(f"{what} is {shown}, not {_a(kind)} of {of.__name__}")
    for each in parts:
        expect(f"a part of {what}", each, of)


def expect_number(what: str, value: object) -> None:
    """Check that a value is an integer, and not negative."""
    if isinstance(value, bool) or expect(what, value, int) < 0:
        raise ValueError(f"{what} is {exception.show(value)}, not a number from 0 on")


def expect_text(what: str, value: object) -> None:
    """Check that a value is text that can be printed and stored."""
    if not exception.is_encodable(expect(what, value, str)):
        raise ValueError(f"{what} is {exception.show(value)}, which is not Unicode")


def check_error(error: exception.OsAccError) -> None:
    """Check the attributes of an error of the contract, which its class may lack.

    The library shows and judges each error by those of :class:`.OsAccError`. Those of a
    derived class have to be there.

    :raises ValueError: one has another type.
    :raises AttributeError: its constructor does not call that of its base.
    """
    kind = type(error).__name__
    expect_text(f"{kind}.message", error.message)
    expect_text(f"{kind}.hint", error.hint)
    expect_text(f"str() of a {kind}", str(error))
    expect(f"{kind}.fault", error.fault, exception.Fault)
    for name in ("retryable", "elsewhere"):
        expect(f"{kind}.{name}", getattr(error, name), bool)
    if error.reason is not None:
        expect(f"{kind}.reason", error.reason, exception.ErrorReason)
    for own, names in _OF_ERRORS:
        if isinstance(error, own):
            for name in names:
                getattr(error, name)


def _a(kind: type) -> str:
    article = "an" if kind.__name__[0] in "AEIOUaeiou" else "a"
    return f"{article} {kind.__name__}"


def addresses(value: object) -> Iterator[DeviceName]:
    """Yield the addresses that a value states, also if its type is wrong."""
    match value:
        case PciAddress() | MdevType():
            yield value
        case MdevSlot() | OfferedType():
            yield value.type
        case str():
            with contextlib.suppress(exception.InvalidInput):
                yield PciAddress.parse(value)
        case AttachHandle() | RejectedDevice():
            yield from addresses(value.address)
            yield from addresses(getattr(value, "members", ()))
        case UsableFunction():
            yield from value.members
        case tuple() | list() | set() | frozenset():
            for each in value:
                yield from addresses(each)
