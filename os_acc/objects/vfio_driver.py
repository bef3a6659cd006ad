# SPDX-License-Identifier: Apache-2.0

"""Name the driver of a PCI function that is assigned to a guest.

It is vfio-pci, a variant of vfio-pci for one family of devices, or a driver of the host
that offers the function to VFIO itself: the function stays on that one. A name is that
of a directory in ``/sys/bus/pci/drivers``.
"""

from __future__ import annotations

import functools
import re
from typing import Final

VFIO_PCI: Final = "vfio-pci"
#: NVIDIA vGPU Manager for Linux 6.8 and later, on which a function stays.
NVIDIA: Final = "nvidia"

#: The value of ``vfio_driver`` in ``device_spec`` that follows the kernel's modules.
AUTO: Final = "auto"

# Never a path. Some names contain blanks ("i6300ESB timer").
_NAME: Final = re.compile(
    r"[A-Za-z0-9_](?:[A-Za-z0-9_.+: -]{0,62}[A-Za-z0-9_.+:-])?", re.ASCII
)


def is_name(value: object) -> bool:
    """Return whether a value can be the name of a PCI driver."""
    # A subclass of str may be written differently than it is matched.
    return type(value) is str and _NAME.fullmatch(value) is not None


# Each scan asks it several times for each function.
@functools.lru_cache(64)
def is_vfio_driver(driver: str | None) -> bool:
    """Return whether a driver is vfio-pci or one of its variants (mlx5_vfio_pci).

    These have the word vfio in their names, and serve guests alone.
    """
    return driver is not None and "vfio" in driver.replace("-", "_").split("_")
