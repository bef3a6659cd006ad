# SPDX-License-Identifier: Apache-2.0

"""One read of a flow that fails."""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

from os_acc.host import attributes, pci
from os_acc.testing import FakeKernel
from tests.stress.flows import DFL

_NUMBER = 8
_CARD = DFL.rpartition(".")[0]


class Reads:
    """Counts reads in this process and its forks.

    :param at: the read that is refused, counted from 1; 0: none.
    :param error: the errno of the refusal.
    """

    def __init__(self, at: int, error: int) -> None:
        self._at, self._error = at, error
        self._lock = threading.Lock()
        # Shared with children.
        self._count = mmap.mmap(-1, _NUMBER)

    @property
    def count(self) -> int:
        """The number of reads so far."""
        return int.from_bytes(self._count[:], "big")

    def one(self) -> int:
        """Count a read; return the errno of its refusal, or 0."""
        with self._lock:
            self._count[:] = (self.count + 1).to_bytes(_NUMBER, "big")
            return self._error if self.count == self._at else 0

    def check(self, path: object) -> None:
        """Count a read.

        :raises OSError: the read is refused.
        """
        if error := self.one():
            raise OSError(error, os.strerror(error), path)


class _Unreadable(FakeKernel):
    def __init__(self, root: str, reads: Reads) -> None:
        super().__init__(root)
        self._reads = reads

    def read(self, path: str) -> str:
        self._reads.check(path)
        return super().read(path)

    def probe_vfio_group(self, group: int) -> int:
        return self._reads.one() or super().probe_vfio_group(group)

    def probe_vfio_device(self, name: str) -> int:
        return self._reads.one() or super().probe_vfio_device(name)


@contextlib.contextmanager
def to_the_helper(root: str, at: int = 0, error: int = 0) -> Iterator[Reads]:
    """Refuse one read of the privileged code."""
    reads = Reads(at, error)
    with _Unreadable(root, reads).installed():
        yield reads


@contextlib.contextmanager
def to_the_service(_root: str, at: int = 0, error: int = 0) -> Iterator[Reads]:
    """Refuse one read of the card by the code that has no privileges.

    A read opens a file, follows a link, or lists a directory.
    """
    reads = Reads(at, error)

    def checked(call: Any) -> Any:
        def read(path: Any, *args: Any, **options: Any) -> Any:
            if _CARD in _whole(path, options.get("dir_fd")):
                reads.check(path)
            return call(path, *args, **options)

        return read

    names = {name: getattr(os, name) for name in dir(os) if not name.startswith("__")}
    struck = {name: checked(names[name]) for name in ("open", "readlink", "listdir")}
    shown = SimpleNamespace(**names | struck)
    with (
        mock.patch.object(attributes, "os", shown),
        mock.patch.object(pci, "os", shown),
    ):
        yield reads


def _whole(path: str | int, dir_fd: int | None) -> str:
    if isinstance(path, int):
        path, dir_fd = "", path
    if dir_fd is None:
        return path
    return os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
