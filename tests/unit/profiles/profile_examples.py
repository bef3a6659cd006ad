# SPDX-License-Identifier: Apache-2.0

"""Device profiles as an operator writes them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from os_acc.objects.request_group import DeviceProfile
from os_acc.profiles.sources import ProfileFiles

FOREVER = math.inf
FPGA, GPU = "CUSTOM_ACCELERATOR_FPGA", "CUSTOM_ACCELERATOR_GPU"
BITSTREAM = "d5ca2f11-3108-4426-a11c-a959987565df"


def profile(name: str = "fpga-dp1", **more: Any) -> dict[str, Any]:
    """Return a profile of two groups: one FPGA with a bitstream, and two GPUs."""
    return {
        "name": name,
        "groups": [
            {
                "resources:CUSTOM_ACCELERATOR_FPGA": "1",
                "trait:CUSTOM_PROGRAMMABLE": "required",
                "accel:bitstream_id": BITSTREAM,
            },
            {"resources:CUSTOM_ACCELERATOR_GPU": "2", "trait:CUSTOM_OLD": "forbidden"},
        ],
        **more,
    }


def of_group(**group: Any) -> dict[str, Any]:
    """Return a profile of one group; '__' in a key stands for the colon."""
    keys = {key.replace("__", ":"): value for key, value in group.items()}
    return {"name": "one", "groups": [keys]}


def results(path: Path) -> list[tuple[str | None, str | None]]:
    """Return (name, None) or (None, error) of each entry of a catalogue."""
    return [
        (each.name, None) if isinstance(each, DeviceProfile) else (None, str(each))
        for _where, each in ProfileFiles(str(path)).checked(FOREVER)
    ]
