# SPDX-License-Identifier: Apache-2.0

"""How much slower Python runs in the emulated machine than outside of it."""

from __future__ import annotations

import json
import time
from pathlib import Path

#: In the results folder: the seconds that :func:`seconds` takes outside.
FILE = "pace"


def seconds() -> float:
    """Return the shortest of ten runs of a fixed piece of Python.

    It calls functions, builds text and reads small files, as a plug does.
    """

    def run() -> float:
        began = time.perf_counter()
        for number in range(200):
            text = json.dumps({f"{key:04x}": [key] * 4 for key in range(number % 20)})
            assert len(json.loads(text)) == number % 20
            assert Path("/proc/self/stat").read_bytes()
        return time.perf_counter() - began

    return min(run() for _ in range(10))


def slowdown(results: Path) -> float:
    """Return by how many times Python is slower here than outside of the machine."""
    return seconds() / float((results / FILE).read_text())
