# SPDX-License-Identifier: Apache-2.0

"""Measured delays of the real kernel's writes, and a fake kernel that has them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence

from benchmarks.rows import Place
from os_acc.testing import FakeKernel

#: The benchmark with these delays: one row for each attribute.
WRITE = "write"
#: The attributes that a plug and an unplug of one function write.
ATTRIBUTES = ("driver_override", "unbind", "drivers_probe", "reset")


class SlowKernel(FakeKernel):
    """A fake kernel whose writes take as long as those of the real kernel.

    Each write delays its own device alone, as in Linux.

    :param seconds: the delay of each attribute, by its name.
    """

    def __init__(
        self, root: str | os.PathLike[str], seconds: Mapping[str, float]
    ) -> None:
        super().__init__(root)
        self._seconds = seconds

    def write(self, path: str, text: str) -> None:
        """Write, and return after the delay of the real kernel."""
        end = time.monotonic() + self._seconds[os.path.basename(path)]
        try:
            super().write(path, text)
        finally:
            time.sleep(max(0.0, end - time.monotonic()))


class Unknown(Exception):
    """No measured delay exists for a write."""


def measured(places: Sequence[Place]) -> dict[str, float]:
    """Return the seconds of each attribute, from results of the virtual machine."""
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
