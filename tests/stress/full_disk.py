# SPDX-License-Identifier: Apache-2.0

"""A disk that is full from one write of the store on.

An audit hook refuses a file that is created, linked or renamed. Wrappers refuse
write(2), after half of its data, and fsync(2): a file system reports a full disk at
either. A small file system would have to be mounted, which an ordinary user may not do,
and would refuse no chosen write.

The hooks stay for good, so this is for processes that end with the run.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import Any

from os_acc.store import state_files
from tests.unit.store.store_files import opened_halfway


class Disk:
    """The disk of the files below one directory; one in each process.

    :ivar writes: the writes so far, including the refused ones.
    :param full_at: the write, counted from 1, from which on it is full; 0: never.
    :param stays: whether it stays full, or has space again for the next write.
    """

    def __init__(self, directory: str, full_at: int = 0, stays: bool = True) -> None:
        self._directory = os.path.realpath(directory)
        self._full_at = full_at
        self._stays = stays
        self._is_watched = False
        self.writes: list[str] = []

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Count, and refuse, the writes within the context."""
        self._install()
        self._is_watched = True
        try:
            yield
        finally:
            self._is_watched = False

    def _refuse(self, what: str, path: object) -> None:
        """Count a write.

        :raises OSError: there is no space for it.
        """
        if not self._is_watched or not isinstance(path, str | bytes):
            return
        name = os.fsdecode(path)
        if not name.startswith(self._directory):
            return
        self.writes.append(f"{what} {os.path.relpath(name, self._directory)}")
        count = len(self.writes)
        is_full = count >= self._full_at if self._stays else count == self._full_at
        if self._full_at and is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    def _install(self) -> None:
        sys.addaudithook(self._audit)
        fsync = os.fsync

        def written(fd: int) -> None:
            self._refuse("write", os.readlink(f"/proc/self/fd/{fd}"))

        def synced(fd: Any) -> None:
            self._refuse("fsync", os.readlink(f"/proc/self/fd/{fd}"))
            fsync(fd)

        vars(state_files)["open"] = opened_halfway(written)
        os.fsync = synced

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        # A file that exists needs no space for its name.
        if event == "open":
            path, _mode, flags = args
            if not isinstance(flags, int) or not flags & os.O_CREAT:
                return
        elif event in ("os.mkdir", "os.rename", "os.link"):
            path = args[0] if event == "os.mkdir" else args[1]
        else:
            return
        is_new = isinstance(path, str | bytes) and not os.path.lexists(path)
        if is_new or event == "os.rename":
            self._refuse(event, path)
