# SPDX-License-Identifier: Apache-2.0

"""Attributes of XRT's drivers, as values.

AMD/Xilinx' XRT, src/runtime_src/core/pcie/driver/linux/xocl: a card has two PCI
functions in one slot. The management function (driver xclmgmt) programs and
resets the card and writes its flash; the user function (driver xocl) provides
the loaded xclbin.
"""

from __future__ import annotations

import re
import uuid
from typing import Final

VENDOR: Final = 0x10EE
MANAGEMENT_DRIVER: Final = "xclmgmt"
USER_DRIVER: Final = "xocl"

_ID = re.compile(
    r"[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    re.ASCII | re.IGNORECASE,
)


def interface_id(text: str) -> str | None:
    """Return the interface required of xclbins, from xclmgmt's ``interface_uuids``.

    The first line is the base of the card's shell; then follow all loaded stages,
    the base among them again (interface_uuids_show() in mgmt-sysfs.c). For a
    shell of two stages, xclbins are built for the second.

    :returns: canonical UUID; None for any other text.
    """
    found = _ids(text)
    if found is None:
        return None
    stages = tuple(dict.fromkeys(found))
    return stages[-1] if len(stages) in (1, 2) else None


def xclbin_id(text: str) -> str | None:
    """Return the xclbin loaded by xocl, from its ``xclbinuuid``.

    There is one line for each slot (xclbinuuid_show() in xocl_sysfs.c); only
    cards with one slot are attached to guests.

    :returns: canonical UUID; None: none, several, or other text.
    """
    found = _ids(text) or ()
    loaded = [each for each in found if uuid.UUID(each).int]
    return loaded[0] if len(loaded) == 1 else None


def _ids(text: str) -> tuple[str, ...] | None:
    lines = text.split()
    if not all(_ID.fullmatch(line) for line in lines):
        return None
    return tuple(str(uuid.UUID(line)) for line in lines)
