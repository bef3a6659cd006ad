# SPDX-License-Identifier: Apache-2.0

"""The images from which the demo's FPGA is programmed."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Final

from os_acc.testing import hosts
from os_acc.testing.image_directory import ImageDirectory

#: What the card holds after power-on, and what the guest's flavor asks for.
POWER_ON: Final = hosts.DFL_FUNCTION
GZIP: Final = "3a7ab2f4-4f15-4d36-9c2e-0b6a3d0d6f01"


def fill(directory: str) -> None:
    """Make the directory, with one image as an operator would put it there."""
    ImageDirectory(Path(directory)).put_gbs(
        "gzip.gbs",
        GZIP,
        id=str(uuid.uuid5(uuid.UUID(GZIP), "image")),
        **{"accel:function_name": "gzip"},
    )
