# SPDX-License-Identifier: Apache-2.0

"""Images and regions for the tests of image selection and policy."""

from __future__ import annotations

import hashlib
import logging
import uuid
from typing import Any

from os_acc.bitstreams.options import BitstreamSettings
from os_acc.objects.bitstream import Image, ImageFormat
from os_acc.objects.pci import PciAddress, PciIdentity
from os_acc.objects.region import Region

REGION_ID = "9926ab6d-6c92-5a68-aabc-a7d84c545738"
OTHER_REGION_ID = "69528db6-eb31-577a-8c36-68f9faa081f6"
FUNCTION_ID = "d8424dc4-a4a3-c413-f89e-433683f9040b"
OTHER_FUNCTION_ID = "f7df405c-bd7a-cf72-22f1-44b0b93acd18"
OPERATOR = "0aba0000000000000000000000000001"
TENANT = "0aba0000000000000000000000000666"

REGION = Region(
    card=PciAddress(0, 0x3B, 0, 0),
    identity=PciIdentity(0x8086, 0x09C4, 0x8086, 0x0000, 0),
    number=0,
    interface_id=REGION_ID,
    function_id=None,
)

#: The default policy, with one allowed project.
RULES = BitstreamSettings(
    source="glance",
    directory="/images",
    cache_size=2**30,
    projects=frozenset({OPERATOR}),
    public=True,
    max_size=2**30,
    disk_formats=frozenset({"raw"}),
    container_formats=frozenset({"bare"}),
    file_formats=frozenset({ImageFormat.GBS, ImageFormat.XCLBIN}),
    signed=False,
    certificates="/trusted",
    unseen=logging.WARNING,
    reprogram_at_release=False,
)


def image(number: int = 1, properties: Any = None, **fields: Any) -> Image:
    """Return a valid image, but for these fields."""
    values = {
        "id": str(uuid.UUID(int=number)),
        "name": f"image-{number}",
        "status": "active",
        "visibility": "public",
        "hidden": False,
        "owner": OPERATOR,
        "size": 1_000_000,
        "disk_format": "raw",
        "container_format": "bare",
        "hash_algo": "sha512",
        "hash_value": hashlib.sha512(str(number).encode()).hexdigest(),
        "tags": frozenset({"FPGA"}),
        "properties": {"accel:function_id": FUNCTION_ID, "region_uuid": REGION_ID},
    }
    if properties is not None:
        values["properties"] = properties
    return Image(**(values | fields))
