# SPDX-License-Identifier: Apache-2.0

"""The images from which the demo's FPGA is programmed."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from typing import Final

from os_acc.testing import bitstreams, hosts
from os_acc.testing.dfl_specs import payload

#: What the card holds after power-on, and what the guest's flavor asks for.
POWER_ON: Final = hosts.DFL_FUNCTION
GZIP: Final = "3a7ab2f4-4f15-4d36-9c2e-0b6a3d0d6f01"


def fill(directory: str) -> None:
    """Make the directory, with one image as an operator would put it there."""
    os.mkdir(directory)
    content = bitstreams.gbs(hosts.DFL_INTERFACE, GZIP, payload(GZIP))
    told = {
        "id": str(uuid.uuid5(uuid.UUID(GZIP), "image")),
        "name": "gzip.gbs",
        "tags": ["FPGA"],
        "os_hash_algo": "sha512",
        "os_hash_value": hashlib.sha512(content).hexdigest(),
        "accel:function_id": GZIP,
        "accel:function_name": "gzip",
    }
    path = os.path.join(directory, "gzip.gbs")
    with open(path, "wb") as file:
        file.write(content)
    with open(f"{path}.json", "w", encoding="utf-8") as properties:
        json.dump(told, properties, indent=1)
