# SPDX-License-Identifier: Apache-2.0

"""Names of PCI devices, from the database of pciutils if it is installed.

The format is that of pci.ids(5): a vendor per line, its devices below it, each with
a tab, and a section of classes at the end.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Self

from os_acc.objects.pci import PciIdentity

#: Paths below the root: Debian's, and that of hwdata.
PATHS = ("usr/share/misc/pci.ids", "usr/share/hwdata/pci.ids")
#: The file has 1.4 MiB today.
_LARGEST = 16 << 20
_LONGEST_NAME = 80
_NUMBER = re.compile("[0-9a-fA-F]{4}")

#: Vendor and product; the product of a vendor's own name is None.
Key = tuple[int, int | None]


@dataclasses.dataclass(frozen=True, slots=True)
class ModelNames:
    """The names of some devices; empty if no database is installed."""

    names: Mapping[Key, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, root: str, identities: Iterable[PciIdentity]) -> Self:
        """Read the names of these devices, and of their vendors.

        A database that cannot be read is the same as none: no decision depends on
        a name.

        :param root: parent directory of ``/usr``.
        """
        requested = {(each.vendor, each.product) for each in identities}
        for path in PATHS:
            try:
                with open(os.path.join(root, path), "rb") as file:
                    text = file.read(_LARGEST).decode("utf-8", "replace")
            except OSError:
                continue
            return cls(MappingProxyType(dict(_names(text, requested))))
        return cls()

    def known(self, identity: PciIdentity) -> str | None:
        """Return the name of the device; None if it is unknown."""
        return self.names.get((identity.vendor, identity.product))

    def short(self, identity: PciIdentity) -> str:
        """Return the name of the device without its vendor, or both numbers."""
        return self.known(identity) or f"{identity.vendor:04x}:{identity.product:04x}"

    def full(self, identity: PciIdentity) -> str:
        """Return the names of vendor and device, as lspci prints them."""
        vendor = self.names.get((identity.vendor, None))
        if vendor is None:
            return self.short(identity)
        return f"{vendor} {self.known(identity) or f'Device {identity.product:04x}'}"


def _names(text: str, requested: set[tuple[int, int]]) -> Iterator[tuple[Key, str]]:
    vendors = {vendor for vendor, _product in requested}
    vendor: int | None = None
    # str.splitlines() would also split at characters within a name.
    for line in text.split("\n"):
        if line.startswith("\t"):
            if vendor is None or line.startswith("\t\t"):
                continue
            product = _number(line[1:5])
            if product is not None and (vendor, product) in requested:
                yield (vendor, product), _name(line[5:])
        elif line and not line.startswith("#"):
            vendor = _number(line[:4])
            if vendor not in vendors:
                vendor = None
            elif vendor is not None:
                yield (vendor, None), _name(line[4:])


def _number(text: str) -> int | None:
    # int() would also accept signs, blanks and underscores.
    return int(text, 16) if _NUMBER.fullmatch(text) else None


def _name(text: str) -> str:
    printable = "".join(each if each.isprintable() else "\ufffd" for each in text)
    return printable.strip()[:_LONGEST_NAME]
