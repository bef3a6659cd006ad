# SPDX-License-Identifier: Apache-2.0

"""Which card a bitstream's properties mean by ``vendor`` and ``board``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from os_acc.objects.pci import PciIdentity

#: Names that vendors are known by, beside their PCI ids.
_VENDORS: Final[Mapping[str, int]] = {
    "intel": 0x8086,
    "altera": 0x1172,
    "xilinx": 0x10EE,
    "amd": 0x10EE,
    "inspur": 0x1BD4,
    "silicom": 0x1C2C,
}
#: Cyborg's name of a board, and those of the kernel's driver (dfl-pci.c).
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
    """Whether this is the card's vendor: ``intel``, ``8086`` or ``0x8086``.

    A vendor that is not known is not the card's.
    """
    text = text.lower()
    if match := _ID.fullmatch(text):
        return card.vendor == int(match[1], 16)
    return card.vendor == _VENDORS.get(text)


def is_board(text: str, card: PciIdentity) -> bool:
    """Whether this is the card's product: ``8086:09c4``, ``09c4``, or a name.

    The ids may be those of the subsystem, by which vendors tell boards with
    the same chip apart. A board that is not known is not the card's.
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
