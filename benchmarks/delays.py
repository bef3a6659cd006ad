# SPDX-License-Identifier: Apache-2.0

"""How long the real kernel took for each write, and a fake that takes as long."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence

from benchmarks.rows import Place
from os_acc.testing import FakeKernel

#: The benchmark whose rows tell: one for each attribute.
WRITE = "write"
#: What a plug and an unplug of one function write to.
ATTRIBUTES = ("driver_override", "unbind", "drivers_probe", "reset")


class SlowKernel(FakeKernel):
    """A fake kernel whose writes last as long as the real one's.

    Each takes its time alone, as in Linux: other devices do not wait for it.

    :param seconds: for the name of each attribute.
    """

    def __init__(
        self, root: str | os.PathLike[str], seconds: Mapping[str, float]
    ) -> None:
        super().__init__(root)
        self._seconds = seconds

    def write(self, path: str, text: str) -> None:
        """Write, and do not return before the real kernel would."""
        end = time.monotonic() + self._seconds[os.path.basename(path)]
        try:
            super().write(path, text)
        finally:
            time.sleep(max(0.0, end - time.monotonic()))


class Unknown(Exception):
    """Nobody has measured how long a write takes."""


def measured(places: Sequence[Place]) -> dict[str, float]:
    """Seconds for each attribute, out of what the virtual machine measured."""
    return {
        row.case: row.median
        for place in places
        for row in place.rows
        if row.benchmark == WRITE
    }


def save(path: str, seconds: Mapping[str, float]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(dict(seconds), file)


def load(path: str) -> dict[str, float]:
    with open(path, encoding="utf-8") as file:
        return {str(name): float(value) for name, value in json.load(file).items()}
