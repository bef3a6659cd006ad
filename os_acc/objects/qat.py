# SPDX-License-Identifier: Apache-2.0

"""Intel QuickAssist devices, and the services that they can be configured for.

Documentation/ABI/testing/sysfs-driver-qat and drivers/crypto/intel/qat of Linux.
"""

from __future__ import annotations

import enum
from typing import Final, TypeAlias

_INTEL: Final = 0x8086
# PF and VF.
_GEN4_AND_LATER: Final = (
    (0x4940, 0x4941),  # 4xxx
    (0x4942, 0x4943),  # 401xx
    (0x4944, 0x4945),  # 402xx
    (0x4946, 0x4947),  # 420xx
    (0x4948, 0x4949),  # 6xxx
)
_EARLIER: Final = (
    (0x0435, 0x0443),  # DH895xCC
    (0x18A0, 0x18A1),  # C4xxx
    (0x19E2, 0x19E3),  # C3xxx
    (0x37C8, 0x37C9),  # C62x
    (0x6F54, 0x6F55),  # D15xx
)

#: The PFs, as (vendor, product).
PFS: Final = frozenset((_INTEL, pf) for pf, _ in (*_EARLIER, *_GEN4_AND_LATER))
#: The PFs and their VFs.
IDS: Final = PFS | {(_INTEL, vf) for _, vf in (*_EARLIER, *_GEN4_AND_LATER)}
#: The PFs whose services can be configured.
CONFIGURABLE: Final = frozenset((_INTEL, pf) for pf, _ in _GEN4_AND_LATER)
#: The attributes below a PF: ``up`` or ``down``, and the services; on 4xxx and later
#: devices, since Linux 6.0.
STATE: Final = "qat/state"
SERVICES: Final = "qat/cfg_services"


class QatService(enum.StrEnum):
    """A service of ``qat/cfg_services``, in the order of the kernel's ``sym;asym``.

    SYM: symmetric, ASYM: asymmetric cryptography; DC: compression; DCC: compression
    chained after a hash or cipher, never with another service; DECOMP: decompression
    (6xxx).
    """

    SYM = "sym"
    ASYM = "asym"
    DC = "dc"
    DCC = "dcc"
    DECOMP = "decomp"


#: The services of a device.
QatServices: TypeAlias = frozenset[QatService]
#: The services that a 6xxx can combine; earlier devices combine two.
_MOST: Final = 3
#: The limit of :func:`number_of`.
HIGHEST_NUMBER: Final = (1 << len(QatService)) - 1


def are_possible(services: QatServices) -> bool:
    """Return whether some device can be configured for these services at once."""
    if not 1 <= len(services) <= _MOST:
        return False
    return QatService.DCC not in services or len(services) == 1


def parse_services(text: str) -> QatServices:
    """Parse the text of ``cfg_services``, whose order is not significant.

    :raises ValueError: it has an unknown service, or is empty.
    """
    return frozenset(QatService(part) for part in text.split(";"))


def services_text(services: QatServices) -> str:
    """Return the text for ``cfg_services``, in the only order that Linux 6.1 takes."""
    return ";".join(each.value for each in QatService if each in services)


def number_of(services: QatServices) -> int:
    """Return services as a number, one bit for each, for the privileged helper."""
    return sum(1 << n for n, each in enumerate(QatService) if each in services)


def services_of(number: int) -> QatServices:
    """Return the services of a number from :func:`number_of`."""
    return frozenset(each for n, each in enumerate(QatService) if number >> n & 1)
