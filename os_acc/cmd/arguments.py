# SPDX-License-Identifier: Apache-2.0

"""Conversion of arguments to typed values; malformed ones are usage errors."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final, TextIO, TypeVar

from os_acc import exception
from os_acc.objects import mdev
from os_acc.objects.instance import canonical_uuid
from os_acc.objects.pci import PciAddress

_T = TypeVar("_T")


def device_address(text: str) -> mdev.DeviceAddress:
    """Convert a PCI address, or the slot of a mediated device."""
    return _parsed(mdev.parse_address, text)


def address(text: str) -> PciAddress:
    """Convert a PCI address."""
    return _parsed(PciAddress.parse, text)


def _parsed(parse: Callable[[str], _T], text: str) -> _T:
    # lspci(8) shows an address without the domain 0.
    is_short = re.fullmatch(r"[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]", text)
    try:
        return parse(f"0000:{text}" if is_short else text)
    except exception.InvalidInput as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def uuid(text: str) -> str:
    """Convert a UUID to its canonical form."""
    parsed = canonical_uuid(text)
    if parsed is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a UUID")
    return parsed


def key_value(text: str) -> tuple[str, str]:
    """Convert ``key=value``, as in a flavor's property."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not key=value")
    return key, value


def add_properties(parser: argparse.ArgumentParser, about: str) -> None:
    """Add the option ``--property``; see :func:`distinct`.

    :param about: description of the properties, for the help.
    """
    parser.add_argument(
        "--property",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        type=key_value,
        help=about,
    )


def distinct(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the values of ``--property`` by key.

    :raises InvalidExtraSpec: one key has two values.
    """
    found: dict[str, str] = {}
    for key, value in pairs:
        if found.setdefault(key, value) != value:
            raise exception.InvalidExtraSpec(
                f"property {exception.show(key)} is given as "
                f"{exception.show(found[key])} and as {exception.show(value)}",
                hint="name a resource class or trait once in a group; use another "
                "group for more",
            )
    return found


def size(text: str) -> int:
    """Convert a number of bytes, or a size with a unit, for example ``5GiB``."""
    # Slow to import.
    from oslo_utils import strutils

    if text.isdecimal():
        return int(text)
    try:
        parsed: int = strutils.string_to_bytes(text, "mixed", return_int=True)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size") from error
    return parsed


def seconds(text: str) -> float:
    """Convert a positive waiting time in seconds."""
    try:
        parsed = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error
    if not 0 < parsed < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a valid timeout")
    return parsed


def number(text: str) -> int:
    """Convert a positive number."""
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def part(text: str) -> tuple[int, int]:
    """Convert a part of several, for example ``2/9``."""
    place, slash, parts = text.partition("/")
    if not slash:
        raise argparse.ArgumentTypeError(f"{text!r} is not a part, such as 2/9")
    found = number(place), number(parts)
    if found[0] > found[1]:
        raise argparse.ArgumentTypeError(f"{text!r} is a part beyond the last")
    return found


def sibling(text: str) -> tuple[PciAddress, str]:
    """Convert ``address=driver``, for another function of the same group."""
    place, driver = key_value(text)
    return address(place), driver


def cells(text: str) -> tuple[int, ...]:
    """Convert the numbers of a host's NUMA cells, for example ``0,1``."""
    if re.fullmatch(r"[0-9]{1,5}(,[0-9]{1,5})*", text, re.ASCII) is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not numbers, such as 0,1")
    return tuple(dict.fromkeys(map(int, text.split(","))))


def new_file(path: str) -> TextIO:
    """Open a file for writing, in UTF-8, without truncating it yet."""
    # Opened during parsing, while root still has access to its own files.
    try:
        return open(path, "a", encoding="utf-8")
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path}: {error.strerror}") from error


def write(file: TextIO, text: str) -> None:
    """Write and close a file of :func:`new_file`; it has its old contents until then.

    :raises InvalidInput: it cannot be written.
    """
    try:
        with file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                file.truncate(0)
            file.write(text)
    except OSError as error:
        raise exception.InvalidInput(
            f"cannot write {file.name}: {error.strerror}"
        ) from error


def json_file(path: str) -> Any:
    """Return the contents of a JSON file; '-' is standard input."""
    # Read during parsing, while root still has access to its own files.
    try:
        if path == "-":
            return json.load(sys.stdin)
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{path} is not JSON: {error}") from error


#: Keywords of ``add_argument()`` for an argument of this type.
UUID: Final[dict[str, Any]] = {"metavar": "UUID", "type": uuid}
DEVICE: Final[dict[str, Any]] = {"metavar": "ADDRESS", "type": device_address}
FUNCTION: Final[dict[str, Any]] = {"metavar": "ADDRESS", "type": address}
CELLS: Final[dict[str, Any]] = {"metavar": "NUMBERS", "type": cells}
SECONDS: Final[dict[str, Any]] = {"metavar": "SECONDS", "type": seconds}
