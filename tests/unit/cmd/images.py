# SPDX-License-Identifier: Apache-2.0

"""Images for the command to fetch, and the images in its cache."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import time
from pathlib import Path

from os_acc.bitstreams import library, options
from os_acc.objects.bitstream import Image
from tests.unit.bitstreams.fake_source import id_of
from tests.unit.cmd.console import Console


@dataclasses.dataclass(frozen=True, slots=True)
class Images:
    """A directory with images, and the cache of the host."""

    place: Path
    console: Console

    def put(self, number: int, content: bytes, **fields: object) -> Image:
        """Add an image, and return its description."""
        metadata = {
            "id": id_of(number),
            "name": f"loopback{number}",
            "tags": ["FPGA"],
            "os_hash_algo": "sha256",
            "os_hash_value": hashlib.sha256(content).hexdigest(),
        }
        file = self.place / f"image{number}.gbs"
        file.write_bytes(content)
        file.with_name(f"{file.name}.json").write_text(json.dumps(metadata | fields))
        return self.library().about(id_of(number), time.monotonic() + 60)

    def library(self) -> library.Library:
        """Return the library that a plug uses at the same time."""
        state = self.console.bench.state_path
        config = self.console.bench.config()
        options.register(config)
        config.set_override("source", "directory", group="os_acc_bitstreams")
        config.set_override("directory", str(self.place), group="os_acc_bitstreams")
        return library.build(config, state)

    @property
    def cached(self) -> set[str]:
        """Return the names of the files in the cache."""
        try:
            return set(os.listdir(f"{self.console.bench.state_path}/bitstreams"))
        except FileNotFoundError:
            return set()
