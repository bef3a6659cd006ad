# SPDX-License-Identifier: Apache-2.0

"""Values of the library as plain JSON, and back by the types of their fields.

Addresses are text, members of enumerations their values, data classes objects.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import typing
from collections.abc import Callable
from types import NoneType
from typing import Any

from os_acc.objects.mdev import DeviceAddress, MdevSlot, parse_address
from os_acc.objects.pci import PciAddress


def encode(value: Any) -> str:
    """Return a value as the text of canonical JSON."""
    return json.dumps(value, default=_plain, sort_keys=True, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """Return a value that is no JSON itself as such a value, or as an object."""
    match value:
        case PciAddress() | MdevSlot():
            return str(value)
        case enum.Enum():
            return value.value
    kind: Any = type(value)
    return {name: getattr(value, name) for name in _names(kind)}


@functools.cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(each.name for each in dataclasses.fields(kind))


def decode(kind: Any, value: Any) -> Any:
    """Return the value of a type from plain JSON.

    :raises KeyError, TypeError, ValueError: it is not the JSON of such a value.
    """
    read = _reader(kind)
    return value if read is None else read(value)


@functools.cache
def _reader(kind: Any) -> Callable[[Any], Any] | None:
    """Return the function that reads a type; None: its values are plain.

    For an optional type it reads values other than None. ``read_fields`` handles None:
    an optional type may only be that of a field.
    """
    parts = typing.get_args(kind)
    if kind is PciAddress:
        return PciAddress.parse
    if kind == DeviceAddress:
        return parse_address
    if typing.get_origin(kind) is tuple:
        return functools.partial(_read_tuple, parts)
    if NoneType in parts:
        (part,) = (each for each in parts if each is not NoneType)
        return _reader(part)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        readers = [
            (name, _reader(hints[name]), NoneType in typing.get_args(hints[name]))
            for name in _names(kind)
        ]

        def read_fields(value: Any) -> Any:
            fields = {}
            for name, read, is_optional in readers:
                field = value[name]
                if read is not None and not (is_optional and field is None):
                    field = read(field)
                fields[name] = field
            return kind(**fields)

        return read_fields
    return None


def _read_tuple(parts: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if parts[-1] is Ellipsis:
        read = _reader(parts[0])
        return tuple(value if read is None else map(read, value))
    pairs = zip(parts, value, strict=True)
    return tuple([decode(part, each) for part, each in pairs])
