# SPDX-License-Identifier: Apache-2.0

"""Families of devices that PCI ids and class codes identify.

Vendor and class are always compared as numbers, never as the text of a database of
names, which some hosts do not have and which names no new card.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from os_acc.objects import qat
from os_acc.objects.pci import PciFunction

_INTEL: Final = 0x8086
_INSPUR: Final = 0x1BD4
_HUAWEI: Final = 0x19E5


@dataclasses.dataclass(frozen=True, slots=True)
class Family:
    """A family of devices.

    :ivar kind: the type in the resource class ``CUSTOM_ACCELERATOR_<type>``.
    :ivar traits: those of the family, beside that of the device's ids.
    :ivar keeps_data: a reset does not erase the data that a guest has written.
    """

    kind: str
    traits: frozenset[str] = frozenset()
    keeps_data: bool = False


_FPGA: Final = Family("FPGA")
_FPGA_STORAGE: Final = Family("FPGA", keeps_data=True)
_QAT: Final = Family("QAT")
#: High precision time synchronisation, a family of Cyborg's first specification.
_HPTS: Final = Family("HPTS", frozenset({"CUSTOM_HPTS"}))
_ANY: Final = Family("PCI")


def _ascend(model: str) -> Family:
    return Family("AICHIP", frozenset({"CUSTOM_ASCEND", f"CUSTOM_ASCEND_{model}"}))


#: The families by vendor and product.
BY_ID: Final[Mapping[tuple[int, int], Family]] = MappingProxyType(
    {
        # Intel's cards for its FPGAs (drivers/fpga/dfl-pci.c).
        **dict.fromkeys(
            (
                (_INTEL, product)
                for product in (0x09C4, 0x09C5, 0x0B30, 0x0B31, 0xBCCE, 0xBCCF)
            ),
            _FPGA,
        ),
        **dict.fromkeys(qat.IDS, _QAT),
        # PFs and VFs of one id, as Huawei's driver package lists them.
        (_HUAWEI, 0xD100): _ascend("310"),
        (_HUAWEI, 0xD500): _ascend("310P"),
        (_HUAWEI, 0xD801): _ascend("910"),
        (_HUAWEI, 0xD802): _ascend("910B"),
        (_HUAWEI, 0xD803): _ascend("910C"),
        # Time cards (drivers/ptp/ptp_ocp.c): Meta, Celestica, Orolia, Adva.
        (0x1D9B, 0x0400): _HPTS,
        (0x18D4, 0x1008): _HPTS,
        (0x1AD7, 0xA000): _HPTS,
        (0xAD5A, 0x0400): _HPTS,
    }
)
# (vendor, base class, sub class), None: any.
_BY_VENDOR: Final[Mapping[tuple[int, int | None, int | None], Family]] = (
    MappingProxyType(
        {
            # The accelerators of these vendors are FPGAs under any class code. As
            # storage they keep data all the same.
            (0x10EE, None, None): _FPGA,
            (0x10EE, 0x01, None): _FPGA_STORAGE,
            (0x10EE, 0x05, 0x01): _FPGA_STORAGE,
            (0x10EE, 0x05, 0x02): _FPGA_STORAGE,
            (0x1172, None, None): _FPGA,
            (0x1172, 0x01, None): _FPGA_STORAGE,
            (0x1172, 0x05, 0x01): _FPGA_STORAGE,
            (0x1172, 0x05, 0x02): _FPGA_STORAGE,
            # Inspur's FPGAs and disks differ by class alone. The traits are Cyborg's.
            (_INSPUR, 0x12, None): Family("FPGA", frozenset({"CUSTOM_FPGA_INSPUR"})),
            (_INSPUR, 0x01, 0x08): Family(
                "SSD", frozenset({"CUSTOM_SSD_INSPUR"}), keeps_data=True
            ),
        }
    )
)
# PCI Code and ID Assignment Specification: base class, sub class; None: any.
_BY_CLASS: Final[Mapping[tuple[int, int | None], Family]] = MappingProxyType(
    {
        (0x01, 0x08): Family("SSD", keeps_data=True),
        # Mass storage of other interfaces: the disks behind it, or its own.
        (0x01, None): Family("PCI", keeps_data=True),
        (0x02, None): Family("NIC"),
        (0x03, None): Family("GPU"),
        # Flash memory keeps its contents without power, and a function level reset
        # leaves CXL.mem as it is (Compute Express Link Specification, section 9.5).
        (0x05, 0x01): Family("PCI", keeps_data=True),
        (0x05, 0x02): Family("PCI", keeps_data=True),
        # Communications synchronization plus time and frequency test/measurement.
        (0x11, 0x10): _HPTS,
        (0x12, None): Family("AICHIP"),
    }
)


def family_of(function: PciFunction) -> Family:
    """Return the family of a function; ``PCI`` if no row of the table fits."""
    vendor, product = function.identity.vendor, function.identity.product
    found = BY_ID.get((vendor, product))
    if found is not None:
        return found
    base, sub = function.class_code >> 16, function.class_code >> 8 & 0xFF
    return (
        _BY_VENDOR.get((vendor, base, sub))
        or _BY_VENDOR.get((vendor, base, None))
        or _BY_VENDOR.get((vendor, None, None))
        or _BY_CLASS.get((base, sub))
        or _BY_CLASS.get((base, None))
        or _ANY
    )
