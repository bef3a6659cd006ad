# SPDX-License-Identifier: Apache-2.0

"""The images from which the demo's FPGA is programmed."""

from __future__ import annotations

import uuid
from typing import Final

from os_acc.testing import hosts
from os_acc.testing.image_directory import ImageDirectory

#: The card's function after power-on, and the function of the guest's flavor.
POWER_ON: Final = hosts.DFL_FUNCTION
GZIP: Final = "3a7ab2f4-4f15-4d36-9c2e-0b6a3d0d6f01"


def fill(images: ImageDirectory) -> None:
    """Add one image, as an operator would."""
    images.put_gbs(
        "gzip.gbs",
        GZIP,
        id=str(uuid.uuid5(uuid.UUID(GZIP), "image")),
        **{"accel:function_name": "gzip"},
    )
