# SPDX-License-Identifier: Apache-2.0

"""Wrong values that vendors' plugins return, and an exception that they raise."""

from __future__ import annotations

import dataclasses
from typing import Any

from os_acc.plugins import base


def with_handle(right: base.Device, **changes: Any) -> base.Device:
    handle = dataclasses.replace(right.handles[0], **changes)
    return dataclasses.replace(right, handles=(handle,))


def region(right: base.Device, **changes: Any) -> base.Region:
    empty = base.Region(right.address, right.identity, 0, None, None)
    return dataclasses.replace(empty, **changes)


class Text(str):
    """Text that fails once the library uses it."""

    __slots__ = ()

    def _fail(self, *_args: object) -> Any:
        raise RuntimeError("a method of the vendor's text")

    __hash__ = __eq__ = __lt__ = __str__ = __format__ = _fail


class Number(int):
    """A number that fails likewise."""

    def _fail(self, *_args: object) -> Any:
        raise RuntimeError("a method of the vendor's number")

    __hash__ = __eq__ = __str__ = __format__ = _fail


class Traits(frozenset[str]):
    """A set that fails likewise."""

    __slots__ = ()

    def _fail(self, *_args: object) -> Any:
        raise RuntimeError("a method of the vendor's set")

    __or__ = __ror__ = __and__ = __hash__ = _fail


class Address(base.PciAddress):
    """An address that fails as text."""

    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError("a method of the vendor's address")


class DerivedDevice(base.Device):
    """A device whose traits can be read while it is discovered, and once."""

    __slots__ = ("reads",)

    def __getattribute__(self, name: str) -> Any:
        if name == "traits":
            reads = getattr(self, "reads", 0) + 1
            object.__setattr__(self, "reads", reads)
            if reads > 1:
                raise RuntimeError("a property of the vendor's device")
        return super().__getattribute__(name)


class Unspeakable(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no text")

    __str__ = __repr__
