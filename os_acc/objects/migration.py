# SPDX-License-Identifier: Apache-2.0

"""The answer of VFIO whether the state of a device can be migrated.

``VFIO_DEVICE_FEATURE_MIGRATION`` and ``VFIO_DEVICE_FEATURE_MIG_DATA_SIZE``
(include/uapi/linux/vfio.h).
"""

from __future__ import annotations

import dataclasses
from typing import Final, Self

#: The trait of a device whose state can be migrated.
TRAIT: Final = "CUSTOM_ACCELERATOR_LIVE_MIGRATABLE"

_FLAGS: Final = {1: "STOP_COPY", 2: "P2P", 4: "PRE_COPY"}
_STOP_COPY: Final = 1
_P2P: Final = 2


@dataclasses.dataclass(frozen=True, slots=True)
class MigrationSupport:
    """The answer for devices of one model on one version of their driver.

    :ivar flags: ``VFIO_MIGRATION_*``; 0: the driver cannot migrate the device.
    :ivar size: of the state of the device in bytes, as the driver estimates it; 0: it
        gives no estimate.
    """

    flags: int = 0
    size: int = 0

    @property
    def is_migratable(self) -> bool:
        """Whether the driver saves and restores the state of the stopped device."""
        return bool(self.flags & _STOP_COPY)

    @property
    def is_migratable_beside_others(self) -> bool:
        """Whether other devices of the guest may move as well; QEMU needs P2P then."""
        return self.is_migratable and bool(self.flags & _P2P)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the flags; a flag that is newer than os_acc has none."""
        return tuple(name for flag, name in _FLAGS.items() if self.flags & flag)

    def encoded(self) -> str:
        """Return the text that :meth:`parse` reads."""
        return f"{self.flags} {self.size}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an encoded answer.

        :raises ValueError: it is malformed.
        """
        flags, size = map(int, text.split(" "))
        return cls(flags, size)
