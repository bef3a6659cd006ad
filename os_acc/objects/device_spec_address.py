# SPDX-License-Identifier: Apache-2.0

"""The three forms of a device's address: glob, regex, network interface."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from os_acc import exception
from os_acc.objects.pci import PciAddress, function_named

#: The fields of an address and the largest value of each. Nova stops at
#: domain FFFF; VMD's devices have domains above it.
LIMITS: Final[Mapping[str, int]] = {
    "domain": 0xFFFF_FFFF,
    "bus": 0xFF,
    "slot": 0x1F,
    "function": 0x7,
}
_HEX = re.compile(r"(?:0x)?[0-9a-f]+", re.IGNORECASE | re.ASCII)
_ANY: Final = "*"


def text_of(key: str, value: object) -> str:
    """Return the value of a key that is text.

    :raises InvalidConfiguration: it is no text.
    """
    if not isinstance(value, str):
        raise exception.InvalidConfiguration(
            f"{key} is {exception.show(value)}, not text"
        )
    return value


def hexadecimal(what: str, text: str, limit: int) -> int | None:
    """Parse a hexadecimal field; return None for the wildcard ``*``.

    :raises InvalidConfiguration: it is neither, or above its limit.
    """
    stripped = text.strip()
    if stripped == _ANY:
        return None
    if not _HEX.fullmatch(stripped) or int(stripped, 16) > limit:
        raise exception.InvalidConfiguration(
            f"{what} is {exception.show(text)}",
            hint=f"use a hexadecimal number up to {limit:X}, or '*'",
        )
    return int(stripped, 16)


def _fields(address: PciAddress) -> tuple[str, str, str, str]:
    domain, bus, slot, function = address.parts
    return (f"{domain:04x}", f"{bus:02x}", f"{slot:02x}", f"{function:x}")


@dataclasses.dataclass(frozen=True, slots=True)
class Glob:
    """An address pattern; a field that is None matches any value."""

    domain: int | None = None
    bus: int | None = None
    slot: int | None = None
    function: int | None = None

    def matches(self, address: PciAddress) -> bool:
        return (
            self.domain in (None, address.domain)
            and self.bus in (None, address.bus)
            and self.slot in (None, address.slot)
            and self.function in (None, address.function)
        )

    def single(self, netdevs: Mapping[str, PciAddress]) -> PciAddress | None:
        """Return the address if the pattern names exactly one."""
        if (
            self.domain is None
            or self.bus is None
            or self.slot is None
            or self.function is None
        ):
            return None
        return PciAddress(self.domain, self.bus, self.slot, self.function)


@dataclasses.dataclass(frozen=True, slots=True)
class Regex:
    """A regular expression for each field, in the order of an address.

    As in Nova, they are matched against lower-case, zero-padded fields with
    ``re.match``, which is anchored at the start only: bus ``3`` matches ``3b``.
    """

    patterns: tuple[re.Pattern[str], ...]

    def matches(self, address: PciAddress) -> bool:
        pairs = zip(self.patterns, _fields(address), strict=True)
        return all(pattern.match(field) for pattern, field in pairs)

    def single(self, netdevs: Mapping[str, PciAddress]) -> PciAddress | None:
        """Return the address if the patterns are the literal fields of one."""
        domain, bus, slot, function = (pattern.pattern for pattern in self.patterns)
        text = f"{domain}:{bus}:{slot}.{function}"
        address = function_named(text)
        return address if str(address) == text else None


@dataclasses.dataclass(frozen=True, slots=True)
class Netdev:
    """The PCI function behind a network interface, by the interface's name.

    It matches no address; :meth:`single` returns the function.
    """

    name: str

    def matches(self, address: PciAddress) -> bool:
        return False

    def single(self, netdevs: Mapping[str, PciAddress]) -> PciAddress | None:
        """Return the function if the host has the interface."""
        return netdevs.get(self.name)


@dataclasses.dataclass(frozen=True, slots=True)
class ParentName:
    """A virtual parent of mediated devices. It is, and matches, no PCI function."""

    name: str

    def matches(self, address: PciAddress) -> bool:
        return False

    def single(self, netdevs: Mapping[str, PciAddress]) -> PciAddress | None:
        """Return None."""
        return None


Place: TypeAlias = Glob | Regex | Netdev | ParentName


def parse_glob(text: str) -> Glob:
    """Parse ``[[[domain:]bus:]slot][.function]``; blank or ``*`` matches any.

    Fields are counted from the right: ``3b:02`` is a bus and a slot.

    :raises InvalidConfiguration: too many fields, or a malformed field.
    """
    place, _dot, function = text.partition(".")
    fields = place.split(":")
    if len(fields) > 3:
        raise exception.InvalidConfiguration(
            f"address {exception.show(text)} has too many fields",
            hint="use the form 0000:3b:02.1",
        )
    padded = [_ANY] * (3 - len(fields)) + fields + [function]
    values = [
        hexadecimal(
            f"{name} of address {exception.show(text)}", field.strip() or _ANY, top
        )
        for (name, top), field in zip(LIMITS.items(), padded, strict=True)
    ]
    return Glob(*values)


def parse_regex(fields: Mapping[str, Any]) -> Regex:
    """Parse a regular expression for each field; a missing field matches any.

    :raises InvalidConfiguration: a field is not a regular expression.
    """
    return Regex(tuple(_pattern(name, fields.get(name, ".*")) for name in LIMITS))


def _pattern(name: str, value: object) -> re.Pattern[str]:
    text = text_of(f"{name} of the address", value)
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise exception.InvalidConfiguration(
            f"{name} of the address is {exception.show(text)}, "
            f"not a regular expression: {exception.show(str(error))}"
        ) from error
