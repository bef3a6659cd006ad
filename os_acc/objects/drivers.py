# SPDX-License-Identifier: Apache-2.0

"""Names of PCI drivers, and the ids that FPGA drivers show.

A function that is assigned to a guest has vfio-pci, a variant of vfio-pci for one
family of devices, or a driver of the host that offers it to VFIO itself. A name is that
of a directory in ``/sys/bus/pci/drivers``.

AMD/Xilinx' XRT (src/runtime_src/core/pcie/driver/linux/xocl): a card has two PCI
functions in one slot. The management function (driver xclmgmt) programs and resets the
card and writes its flash; the user function (driver xocl) provides the loaded xclbin.
"""

from __future__ import annotations

import functools
import re
import uuid
from typing import Final

from os_acc.objects.pci import PciIdentity

VFIO_PCI: Final = "vfio-pci"
#: NVIDIA vGPU Manager for Linux 6.8 and later, on which a function stays.
NVIDIA: Final = "nvidia"

#: The value of ``vfio_driver`` in ``device_spec`` that follows the kernel's modules.
AUTO: Final = "auto"

# Never a path. Some names contain blanks ("i6300ESB timer").
_DRIVER_NAME: Final = re.compile(
    r"[A-Za-z0-9_](?:[A-Za-z0-9_.+: -]{0,62}[A-Za-z0-9_.+:-])?", re.ASCII
)


def is_driver_name(value: object) -> bool:
    """Return whether a value can be the name of a PCI driver."""
    # A subclass of str may be written differently than it is matched.
    return type(value) is str and _DRIVER_NAME.fullmatch(value) is not None


# Each scan asks it several times for each function.
@functools.lru_cache(64)
def is_vfio_driver(driver: str | None) -> bool:
    """Return whether a driver is vfio-pci or one of its variants (mlx5_vfio_pci).

    These have the word vfio in their names, and serve guests alone.
    """
    return driver is not None and "vfio" in driver.replace("-", "_").split("_")


DFL_DRIVER: Final = "dfl-pci"

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
#: All cards of the kernel's driver, by vendor and product.
DFL_IDS: Final = _PRODUCTS | _GENERIC
_GENERIC_SUBSYSTEMS: Final = frozenset(
    {(0x8086, 0x138D), (0x8086, 0x1770), (0x8086, 0x1771), (0x8086, 0x17D4)}
)

DFL_FME: Final = re.compile(r"dfl-fme\.[0-9]{1,9}", re.ASCII)
DFL_PORT: Final = re.compile(r"dfl-port\.[0-9]{1,9}", re.ASCII)
DFL_MANAGER: Final = re.compile(r"dfl-fme-mgr\.[0-9]{1,9}", re.ASCII)
DFL_REGION: Final = re.compile(r"dfl-fme-region\.[0-9]{1,9}", re.ASCII)

_DFL_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
# Read from a card that does not answer, or that has no id.
_NO_FUNCTION = frozenset({"0" * 32, "f" * 32})


def is_dfl_product(identity: PciIdentity) -> bool:
    """Return whether the kernel's driver has the function in its id table."""
    product = (identity.vendor, identity.product)
    subsystem = (identity.subsystem_vendor, identity.subsystem_product)
    return product in _PRODUCTS or (
        product in _GENERIC and subsystem in _GENERIC_SUBSYSTEMS
    )


def is_dfl_id(text: str) -> bool:
    """Return whether text has the form of an id in sysfs, valid or not."""
    return _DFL_ID.fullmatch(text) is not None


def dfl_uuid(text: str) -> str | None:
    """Return an id of sysfs as canonical UUID; None if it is invalid or unset."""
    if text in _NO_FUNCTION or not is_dfl_id(text):
        return None
    return str(uuid.UUID(hex=text))


XRT_VENDOR: Final = 0x10EE
XRT_MANAGEMENT_DRIVER: Final = "xclmgmt"
XRT_USER_DRIVER: Final = "xocl"

_XRT_ID = re.compile(
    r"[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    re.ASCII | re.IGNORECASE,
)


def xrt_interface_id(text: str) -> str | None:
    """Return the interface required of xclbins, from xclmgmt's ``interface_uuids``.

    The first line is the base of the card's shell; then follow all loaded stages,
    the base among them again (interface_uuids_show() in mgmt-sysfs.c). For a
    shell of two stages, xclbins are built for the second.

    :returns: canonical UUID; None for any other text.
    """
    found = _xrt_ids(text)
    if found is None:
        return None
    stages = tuple(dict.fromkeys(found))
    return stages[-1] if len(stages) in (1, 2) else None


def xrt_xclbin_id(text: str) -> str | None:
    """Return the xclbin loaded by xocl, from its ``xclbinuuid``.

    There is one line for each slot (xclbinuuid_show() in xocl_sysfs.c); only
    cards with one slot are attached to guests.

    :returns: canonical UUID; None: none, several, or other text.
    """
    found = _xrt_ids(text) or ()
    loaded = [each for each in found if uuid.UUID(each).int]
    return loaded[0] if len(loaded) == 1 else None


def _xrt_ids(text: str) -> tuple[str, ...] | None:
    lines = text.split()
    if not all(_XRT_ID.fullmatch(line) for line in lines):
        return None
    return tuple(str(uuid.UUID(line)) for line in lines)
