# SPDX-License-Identifier: Apache-2.0

"""A directory of bitstream images, as ``[os_acc_bitstreams] directory`` names it."""

from __future__ import annotations

import hashlib
import json
import uuid
from pathlib import Path
from typing import Any

from os_acc.testing import bitstreams, hosts
from os_acc.testing.dfl_specs import payload


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
        metadata = bitstreams.gbs_metadata(interface, *declared.split(","))
        content = bitstreams.gbs_of(metadata, payload(function))
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
        content = bitstreams.xclbin(interface, own_id=own_id)
        about = {"accel:function_id": own_id, "accel:function_name": name}
        return self.put(name, content, **about | fields)
