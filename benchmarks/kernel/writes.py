# SPDX-License-Identifier: Apache-2.0

"""Record the library's writes to sysfs, and repeat them without the library."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from os_acc.privsep.kernel import Kernel


@dataclasses.dataclass(frozen=True, slots=True)
class Write:
    """One ``write(2)`` to an attribute."""

    path: str
    text: str

    @property
    def attribute(self) -> str:
        """Return the name of the attribute, without its function."""
        return os.path.basename(self.path)


class Recorder(Kernel):
    """The running kernel, with a record of all writes to it.

    The library writes in forked children, which close all files.
    """

    def __init__(self, notes: Path) -> None:
        self._notes = notes

    def write(self, path: str, text: str) -> None:
        super().write(path, text)
        with open(self._notes, "a", encoding="ascii") as notes:
            notes.write(json.dumps([path, text]) + "\n")

    def take(self) -> tuple[Write, ...]:
        """Return the writes since the last call, in order."""
        lines = self._notes.read_text(encoding="ascii").splitlines()
        self._notes.unlink()
        return tuple(Write(*json.loads(line)) for line in lines)


def replay(writes: Sequence[Write]) -> tuple[float, ...]:
    """Repeat the writes one after another; return the seconds of each.

    :raises OSError: the kernel rejected a write.
    """
    clock, seconds = time.perf_counter, []
    for write in writes:
        text = write.text.encode("ascii")
        start = clock()
        fd = os.open(write.path, os.O_WRONLY | os.O_CLOEXEC)
        os.write(fd, text)
        os.close(fd)
        seconds.append(clock() - start)
    return tuple(seconds)
