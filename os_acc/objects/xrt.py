# SPDX-License-Identifier: Apache-2.0

"""What XRT's drivers say of a card, as values.

AMD/Xilinx' XRT, src/runtime_src/core/pcie/driver/linux/xocl: a card is two
PCI functions of one slot. The management function (driver xclmgmt) programs
the card, resets it and writes its flash; the user function (driver xocl) has
what the loaded xclbin implements.
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
    """What xclbins have to be built for, by xclmgmt's ``interface_uuids``.

    A line for the base of the card's shell comes first, then those of all that
    is loaded, the base's among them again (interface_uuids_show() in
    mgmt-sysfs.c). In a shell of two stages xclbins are built for the second.

    :returns: canonical UUID; None where the text is anything else.
    """
    found = _ids(text)
    if found is None:
        return None
    stages = tuple(dict.fromkeys(found))
    return stages[-1] if len(stages) in (1, 2) else None


def xclbin_id(text: str) -> str | None:
    """Which xclbin xocl has loaded, by its ``xclbinuuid``.

    A line for each slot (xclbinuuid_show() in xocl_sysfs.c); a guest is given
    cards of one slot only.

    :returns: canonical UUID; None: none, several, or something else.
    """
    found = _ids(text) or ()
    loaded = [each for each in found if uuid.UUID(each).int]
    return loaded[0] if len(loaded) == 1 else None


def _ids(text: str) -> tuple[str, ...] | None:
    lines = text.split()
    if not all(_ID.fullmatch(line) for line in lines):
        return None
    return tuple(str(uuid.UUID(line)) for line in lines)
