# SPDX-License-Identifier: Apache-2.0

"""Text for a terminal: numbered headings, tables, indented blocks."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Sequence
from typing import TextIO

_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"


class Terminal:
    """Writes to a stream, with bold headings on a terminal."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._number = itertools.count(1)
        is_plain = not self._stream.isatty() or "NO_COLOR" in os.environ
        self._marks = ("", "") if is_plain else (_BOLD, _PLAIN)

    def step(self, title: str) -> None:
        """Write the heading of the next step."""
        before, after = self._marks
        self._write(f"\n{before}{next(self._number)}. {title}{after}")

    def say(self, text: str, indent: int = 3) -> None:
        """Write a block of text, each line indented."""
        for line in text.splitlines():
            self._write(f"{' ' * indent}{line}")

    def table(self, rows: Iterable[Sequence[object]]) -> None:
        """Write rows of cells, each column as wide as its widest cell."""
        texts = [[str(cell) for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        for row in texts:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            self.say("  ".join(cells).rstrip(), indent=5)

    def _write(self, line: str) -> None:
        print(line, file=self._stream, flush=True)
