# SPDX-License-Identifier: Apache-2.0

"""The contents that a disk may have after a loss of power.

A name or a content that was not synced (fsync(2)) may have reached the disk or not, in
any order and in part. The changes of a directory are noticed at each sync, and at each
rename and link, which are atomic.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

#: The files of a directory, by name.
Files = dict[str, bytes]


class Disk:
    """The disk with the files of one directory.

    :ivar states: each possible content so far; the last list is that of the end.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.states: list[list[Files]] = []
        # Files by a number of our own: the file system reuses those of its inodes.
        self._numbers = itertools.count()
        self._files: dict[int, int] = {}
        self._synced: dict[int, bytes] = {}
        self._written: dict[int, bytes] = {}
        self._now: dict[str, int] = {}
        self._changes: list[dict[str, int | None]] = []
        self._notice()
        self._durable, self._changes = dict(self._now), []
        self._synced |= self._written

    @contextlib.contextmanager
    def watched(self, *, ignored: str = "") -> Iterator[None]:
        """Collect the possible contents before and after each change and sync.

        :param ignored: the name of a file or directory that the disk does not sync.
        """
        fsync = os.fsync

        def synced(descriptor: int) -> None:
            self._collect()
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if os.path.basename(path) != ignored:
                self._sync(path)
            fsync(descriptor)
            self._collect()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", synced)
            for name in ("replace", "link", "unlink"):
                patch.setattr(os, name, self._around(getattr(os, name)))
            yield
        self._collect()

    def distinct(self) -> Iterator[Files]:
        """Yield each possible content once."""
        seen: list[Files] = []
        for files in itertools.chain.from_iterable(self.states):
            if files not in seen:
                seen.append(files)
                yield files

    def _around(self, call: Callable[..., None]) -> Callable[..., None]:
        def around(*args: Any, **more: Any) -> None:
            self._collect()
            call(*args, **more)
            self._collect()

        return around

    def _collect(self) -> None:
        self._notice()
        self.states.append(list(self._possible()))

    def _notice(self) -> None:
        """Note the names and contents that have changed."""
        now = {}
        for each in os.scandir(self._directory):
            if each.is_file():
                inode = each.inode()
                if each.name not in self._now and inode not in self._living():
                    self._files[inode] = next(self._numbers)
                now[each.name] = self._files[inode]
                self._written[self._files[inode]] = Path(each.path).read_bytes()
        change: dict[str, int | None] = {
            name: now.get(name)
            for name in now.keys() | self._now.keys()
            if now.get(name) != self._now.get(name)
        }
        self._now = now
        if change:
            self._changes.append(change)

    def _living(self) -> set[int]:
        numbers = set(self._now.values())
        return {inode for inode, number in self._files.items() if number in numbers}

    def _sync(self, path: str) -> None:
        if path == os.path.realpath(self._directory):
            self._durable, self._changes = dict(self._now), []
        elif (number := self._now.get(os.path.basename(path))) is not None:
            self._synced[number] = self._written[number]

    def _possible(self) -> Iterator[Files]:
        """Yield each content that the disk may have now."""
        count = len(self._changes)
        for taken in itertools.product((False, True), repeat=count):
            names = dict(self._durable)
            for change in itertools.compress(self._changes, taken):
                for name, number in change.items():
                    names.pop(name, None)
                    if number is not None:
                        names[name] = number
            contents = itertools.product(*map(self._contents, names.values()))
            yield from (dict(zip(names, each, strict=True)) for each in contents)

    def _contents(self, number: int) -> tuple[bytes, ...]:
        written = self._written[number]
        if self._synced.get(number) == written:
            return (written,)
        half = len(written) // 2
        return (b"", written[:half], written[:half] + bytes(half), written)
