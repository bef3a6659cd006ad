# SPDX-License-Identifier: Apache-2.0

"""Names and ids of the kernel's DFL driver, for both sides of the helper."""

from __future__ import annotations

import re
import uuid
from typing import Final

from os_acc.objects.pci import PciIdentity

DRIVER: Final = "dfl-pci"

# cci_pcie_id_tbl of drivers/fpga/dfl-pci.c, Linux 6.12: (vendor, product).
_PRODUCTS: Final = frozenset(
    {
        *((0x8086, 0xBCBD), (0x8086, 0xBCBF), (0x8086, 0xBCC0), (0x8086, 0xBCC1)),
        *((0x8086, 0x09C4), (0x8086, 0x09C5), (0x8086, 0x0B30)),
        *((0x8086, 0x0B2B), (0x8086, 0x0B2C), (0x1C2C, 0x1000), (0x1C2C, 0x1001)),
    }
)
# Generic ids of DFL devices: the subsystem id selects the product.
_GENERIC: Final = frozenset({(0x8086, 0xBCCE), (0x8086, 0xBCCF)})
_GENERIC_SUBSYSTEMS: Final = frozenset(
    {(0x8086, 0x138D), (0x8086, 0x1770), (0x8086, 0x1771), (0x8086, 0x17D4)}
)

FME: Final = re.compile(r"dfl-fme\.[0-9]{1,9}", re.ASCII)
PORT: Final = re.compile(r"dfl-port\.[0-9]{1,9}", re.ASCII)
MANAGER: Final = re.compile(r"dfl-fme-mgr\.[0-9]{1,9}", re.ASCII)
REGION: Final = re.compile(r"dfl-fme-region\.[0-9]{1,9}", re.ASCII)

_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
# Read from a card that does not answer, or that has no id.
_NOBODY = frozenset({"0" * 32, "f" * 32})


def is_product(identity: PciIdentity) -> bool:
    """Return whether the kernel's driver has the function in its id table."""
    product = (identity.vendor, identity.product)
    subsystem = (identity.subsystem_vendor, identity.subsystem_product)
    return product in _PRODUCTS or (
        product in _GENERIC and subsystem in _GENERIC_SUBSYSTEMS
    )


def is_id(text: str) -> bool:
    """Return whether text has the form of an id in sysfs, valid or not."""
    return _ID.fullmatch(text) is not None


def canonical(text: str) -> str | None:
    """Return an id of sysfs as canonical UUID; None if it is invalid or unset."""
    if text in _NOBODY or not is_id(text):
        return None
    return str(uuid.UUID(hex=text))
