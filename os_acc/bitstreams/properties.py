# SPDX-License-Identifier: Apache-2.0

"""Image properties that describe a bitstream.

Cyborg defines ``accel:function_id``; its specification of bitstream images defines
``function_uuid``, ``function_name``, ``region_uuid``, ``vendor`` and ``board``. Each is
accepted with and without ``accel:``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from os_acc import exception
from os_acc.objects.bitstream import Image
from os_acc.objects.instance import canonical_uuid
from os_acc.objects.pci import PciIdentity

#: Names of vendors, in addition to their PCI IDs.
_VENDORS: Final[Mapping[str, int]] = {
    "intel": 0x8086,
    "altera": 0x1172,
    "xilinx": 0x10EE,
    "amd": 0x10EE,
    "inspur": 0x1BD4,
    "silicom": 0x1C2C,
}
#: Cyborg's name of a board, and those in the kernel's driver (dfl-pci.c).
_BOARDS: Final[Mapping[str, tuple[int, int]]] = {
    "pac_arria10": (0x8086, 0x09C4),
    "pac_n3000": (0x8086, 0x0B30),
    "pac_d5005": (0x8086, 0x0B2B),
    "pac_n5010": (0x1C2C, 0x1000),
    "pac_n5011": (0x1C2C, 0x1001),
}
_ID: Final = re.compile(r"(?:0x)?([0-9a-f]{4})", re.ASCII)
_IDS: Final = re.compile(r"(?:(?:0x)?([0-9a-f]{4}):)?(?:0x)?([0-9a-f]{4})", re.ASCII)


def is_vendor(text: str, card: PciIdentity) -> bool:
    """Return whether the text is the card's vendor: ``intel``, ``8086``, ``0x8086``.

    An unknown vendor does not match.
    """
    text = text.lower()
    if match := _ID.fullmatch(text):
        return card.vendor == int(match[1], 16)
    return card.vendor == _VENDORS.get(text)


def is_board(text: str, card: PciIdentity) -> bool:
    """Return whether the text is the card's product: ``8086:09c4``, ``09c4``, a name.

    The IDs may be those of the subsystem, by which vendors distinguish boards with
    the same chip. An unknown board does not match.
    """
    text = text.lower().replace("-", "_")
    products = (
        (card.vendor, card.product),
        (card.subsystem_vendor, card.subsystem_product),
    )
    match = _IDS.fullmatch(text)
    if match is None:
        return _BOARDS.get(text) in products
    vendor, product = (part and int(part, 16) for part in match.groups())
    return any(
        product == each_product and vendor in (None, each_vendor)
        for each_vendor, each_product in products
    )


#: The tag of bitstream images: a VM image may have the same properties, to request a
#: bitstream.
TAG: Final = "FPGA"


def spellings(*names: str) -> tuple[str, ...]:
    """Return each name with the prefix ``accel:`` and without."""
    return tuple(f"{prefix}{name}" for name in names for prefix in ("accel:", ""))


FUNCTION_ID_NAMES: Final = spellings("function_id", "function_uuid")
FUNCTION_NAME_NAMES: Final = spellings("function_name")
REGION_NAMES: Final = spellings("region_uuid")
VENDOR_NAMES: Final = spellings("vendor")
BOARD_NAMES: Final = spellings("board")


def stated(image: Image, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each of these properties that the image has."""
    for name in names:
        if name in image.properties:
            yield name, image.properties[name]


def function_ids(image: Image) -> tuple[str, ...]:
    """Return the IDs of the image's functions; UUIDs in canonical form."""
    found = _listed(image, FUNCTION_ID_NAMES)
    return tuple(dict.fromkeys(map(canonical, found)))


def function_names(image: Image) -> tuple[str, ...]:
    """Return the names of the image's functions, as written."""
    return tuple(dict.fromkeys(_listed(image, FUNCTION_NAME_NAMES)))


def region_id(image: Image) -> str | None:
    """Return the interface ID that the image is built for; None if not stated.

    Contradicting properties yield a text that matches no region.
    """
    found = {canonical(value) for _, value in stated(image, REGION_NAMES)}
    return " and ".join(sorted(found)) if found else None


def title(image: Image) -> str:
    """Return the image's ID and name for messages; the name is escaped."""
    return f"{image.id} ({exception.show(image.name)})" if image.name else image.id


def _listed(image: Image, names: Sequence[str]) -> Iterator[str]:
    """Yield the elements of properties whose values are lists, with commas between.

    A value without a comma is one element, as it is written.
    """
    for _, value in stated(image, names):
        if "," in value:
            yield from filter(None, map(str.strip, value.split(",")))
        else:
            yield value


def canonical(value: str) -> str:
    """Return a UUID in canonical form, and any other value as it is written."""
    return canonical_uuid(value) or value
