# SPDX-License-Identifier: Apache-2.0

"""A progress bar for downloads."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TextIO

from os_acc.bitstreams.download import Progress

_WIDTH = 30
_MIB = 1 << 20


@contextlib.contextmanager
def shown(stream: TextIO, title: str) -> Iterator[Progress | None]:
    """Yield a progress callback; None if the stream is no terminal.

    :param stream: output stream of the bar.
    :param title: text before the bar.
    """
    if not stream.isatty():
        yield None
        return
    bar = _Bar(stream, title)
    try:
        yield bar
    finally:
        bar.end()


class _Bar:
    def __init__(self, stream: TextIO, title: str) -> None:
        self._stream = stream
        self._title = title
        self._last = ""

    def __call__(self, done: int, size: int | None) -> None:
        text = f"{self._title} {_bar(done, size)}"
        # Write only changes: a terminal is slower than a disk.
        if text != self._last:
            self._stream.write(f"\r{text}")
            self._stream.flush()
            self._last = text

    def end(self) -> None:
        # A cached image shows no bar.
        if self._last:
            self._stream.write("\n")


def _bar(done: int, size: int | None) -> str:
    if not size:
        return f"{done // _MIB} MiB"
    filled = _WIDTH * done // size
    bar = "#" * filled + "." * (_WIDTH - filled)
    return f"[{bar}] {100 * done // size:3d} % of {size / _MIB:.1f} MiB"
