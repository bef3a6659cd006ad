# SPDX-License-Identifier: Apache-2.0

"""The image from which the demo's FPGA is programmed, and a device profile for it."""

from __future__ import annotations

import os
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


#: The profile for which the demo's host can program its FPGA.
_PROFILE: Final = f"""\
device_profiles:
- name: gzip
  uuid: {uuid.uuid5(uuid.UUID(GZIP), "profile")}
  description: compression, programmed on request
  groups:
  - resources:CUSTOM_ACCELERATOR_FPGA: "1"
    trait:CUSTOM_PROGRAMMABLE: required
    accel:function_name: gzip
"""


def fill_profiles(directory: str) -> None:
    """Make the catalogue of device profiles, with one profile."""
    os.mkdir(directory)
    path = os.path.join(directory, "gzip.yaml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(_PROFILE)
