# SPDX-License-Identifier: Apache-2.0

"""A directory of bitstream images, and bitstreams as the vendors' tools write them."""

from __future__ import annotations

import hashlib
import json
import struct
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from os_acc.testing import dfl, hosts

#: The first bytes of a file of OPAE's packager, and ``magic-no`` in it.
GBS_GUID: Final = b"XeonFPGA\xb7GBSv001"
GBS_MAGIC: Final = 0x1D1F8680
#: The first bytes of a file of xclbinutil; kinds of its sections.
XCLBIN_MAGIC: Final = b"xclbin2\0"
XCLBIN_ID: Final = "e106e953-cf90-4024-e075-282d1a7d820b"
XCLBIN_BITSTREAM: Final = 0
XCLBIN_MCS: Final = 12

PAYLOAD: Final = bytes(range(256)) * 16


class ImageDirectory:
    """A directory of images, as ``[os_acc_bitstreams] source = directory`` reads it.

    An image is a file beside a JSON file with its properties.

    :ivar path: the directory; it is created if it is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    def put(self, name: str, content: bytes, **fields: Any) -> str:
        """Write a file and its properties; return the image's id.

        :param fields: properties beside and instead of the usual ones. An empty
            value leaves a property out.
        """
        image_id = str(uuid.uuid4())
        properties = {
            "id": image_id,
            "name": name,
            "tags": ["FPGA"],
            "os_hash_algo": "sha512",
            "os_hash_value": hashlib.sha512(content).hexdigest(),
            **fields,
        }
        properties = {key: value for key, value in properties.items() if value}
        (self.path / name).write_bytes(content)
        (self.path / f"{name}.json").write_text(json.dumps(properties))
        return image_id

    def put_gbs(
        self,
        name: str,
        function: str,
        *,
        interface: str = hosts.DFL_INTERFACE,
        declared: str = "",
        **fields: Any,
    ) -> str:
        """Put a green bitstream for a card on the DFL driver; return its id.

        :param function: UUID of the function that a programmed region holds.
        :param interface: UUID of the regions that it is built for.
        :param declared: UUIDs in its header and properties, with commas between;
            empty: ``function``.
        """
        declared = declared or function
        metadata = gbs_metadata(interface, *declared.split(","))
        content = gbs_of(metadata, dfl.payload(function))
        about = {"accel:function_id": declared, "accel:function_name": name}
        return self.put(name, content, **about | fields)

    def put_xclbin(
        self,
        name: str,
        own_id: str,
        *,
        interface: str | None = hosts.XRT_INTERFACE,
        **fields: Any,
    ) -> str:
        """Put an xclbin for an Alveo card; return its id.

        :param own_id: UUID in its header and properties.
        :param interface: UUID of the shell that it is linked for, if any.
        """
        content = xclbin(interface, own_id=own_id)
        about = {"accel:function_id": own_id, "accel:function_name": name}
        return self.put(name, content, **about | fields)


def gbs_metadata(interface_id: str, *function_ids: str) -> dict[str, Any]:
    """Return a copy of the metadata that OPAE's packager writes."""
    return {
        "version": 1,
        "platform-name": "DCP",
        "afu-image": {
            "power": 0,
            "clock-frequency-high": 40,
            "clock-frequency-low": 20.0,
            "afu-top-interface": {"class": "ccip_std_afu"},
            "magic-no": GBS_MAGIC,
            "interface-uuid": interface_id,
            "accelerator-clusters": [
                {
                    "name": f"afu{number}",
                    "total-contexts": 1,
                    "accelerator-type-uuid": function_id,
                }
                for number, function_id in enumerate(function_ids)
            ],
        },
    }


def gbs(interface_id: str, function_id: str, payload: bytes = PAYLOAD) -> bytes:
    """Return a green bitstream with one function.

    :param interface_id: UUID of the regions that it is built for.
    :param function_id: UUID of the function that it implements.
    :param payload: the content that is written to the hardware.
    """
    return gbs_of(gbs_metadata(interface_id, function_id), payload)


def gbs_of(metadata: Mapping[str, Any] | bytes, payload: bytes = PAYLOAD) -> bytes:
    """Return a green bitstream with any metadata."""
    if not isinstance(metadata, bytes):
        metadata = json.dumps(metadata).encode()
    return GBS_GUID + struct.pack("<I", len(metadata)) + metadata + payload


def xclbin(
    interface_id: str | None,
    payload: bytes = PAYLOAD,
    *,
    more: Sequence[tuple[int, bytes]] = (),
    mode: int = 1,
    major: int = 2,
    shell: str = "xilinx_u250_gen3x16_xdma_4_1_202210_1",
    own_id: str = XCLBIN_ID,
) -> bytes:
    """Return an AMD/Xilinx axlf container.

    :param interface_id: UUID of the partition that it is built for; None: it
        does not say.
    :param payload: its bitstream section.
    :param more: kind and content of further sections.
    :param mode: ``XCLBIN_MODE``: 0 flat, 1 partial, others.
    :param own_id: the UUID that XRT shows for it; '' for none.
    """
    sections = [(XCLBIN_BITSTREAM, payload), *more]
    beginning = 456 + 40 * len(sections)
    table, contents = b"", b""
    for number, (kind, content) in enumerate(sections):
        contents += bytes(-(beginning + len(contents)) % 8)
        offset = beginning + len(contents)
        name = f"section{number}".encode()
        table += struct.pack("<I16s4xQQ", kind, name, offset, len(content))
        contents += content
    interface = uuid.UUID(interface_id).bytes if interface_id else bytes(16)
    header = struct.pack(
        "<QQQHBBHH16s64s16s16sI4x",
        beginning + len(contents),
        1_700_000_000,
        0,
        0,
        major,
        0,
        mode,
        0,
        interface,
        shell.encode(),
        uuid.UUID(own_id).bytes if own_id else b"",
        b"",
        len(sections),
    )
    front = XCLBIN_MAGIC + struct.pack("<i28s256sQ", -1, b"\xff" * 28, bytes(256), 1)
    return front + header + table + contents
