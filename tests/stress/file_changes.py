# SPDX-License-Identifier: Apache-2.0

"""Every change that this process, or a child of it, makes to a file system.

The changes are recorded below the code under test: opened files by Python's own
audit events, written data by ``os.write`` and ``os.pwrite`` themselves, under the
name that the kernel has for the open file.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

_CHANGES = frozenset(
    {
        *("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link"),
        *("os.symlink", "os.truncate", "os.chmod", "os.chown", "os.utime"),
        *("os.chflags", "os.setxattr", "os.removexattr", "os.chdir"),
    }
)
_PROCESSES = frozenset(
    {
        *("subprocess.Popen", "os.exec", "os.system", "os.posix_spawn", "os.spawn"),
        *("os.kill", "os.killpg", "socket.connect", "socket.bind", "ctypes.dlopen"),
    }
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_SIZE = 1 << 20
_HEAD = 8


class Deed(NamedTuple):
    """One recorded change.

    :ivar what: ``open``, ``write``, or the name of an audit event.
    :ivar path: the path of the file itself, with all links followed but the last.
    :ivar detail: the written data, or the flags of the opening.
    :ivar pid: the process that made the change.
    """

    what: str
    path: str
    detail: str
    pid: int


class FileChanges:
    """Records changes while it watches. One for each process: a hook stays."""

    def __init__(self) -> None:
        # Shared with children, which close every descriptor that they have.
        self._memory = mmap.mmap(-1, _SIZE)
        self._lock = multiprocessing.get_context("fork").Lock()
        self._is_watching = False
        self.has_forked = False
        sys.addaudithook(self._audit)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Record the changes within the context."""
        self._memory[:_HEAD] = bytes(_HEAD)
        self.has_forked = False
        self._is_watching = True
        write, pwrite = os.write, os.pwrite
        os.write = self._watched(write)  # type: ignore[assignment]
        os.pwrite = self._watched(pwrite)  # type: ignore[assignment]
        try:
            yield
        finally:
            os.write, os.pwrite = write, pwrite
            self._is_watching = False

    def seen(self) -> list[Deed]:
        """Return the changes of the last watch."""
        size = int.from_bytes(self._memory[:_HEAD], "little")
        lines = self._memory[_HEAD : _HEAD + size].decode().splitlines()
        return [Deed(*json.loads(line)) for line in lines]

    def _note(self, what: str, path: str, detail: str) -> None:
        line = json.dumps((what, path, detail, os.getpid())).encode() + b"\n"
        with self._lock:
            size = int.from_bytes(self._memory[:_HEAD], "little")
            start = _HEAD + size
            # An overflow fails the test as well: no change is lost silently.
            self._memory[start : start + len(line)] = line
            self._memory[:_HEAD] = (size + len(line)).to_bytes(_HEAD, "little")

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._is_watching:
            return
        if event == "open":
            path, _mode, flags = args
            if isinstance(flags, int) and flags & _WRITING:
                self._note("open", _place(path), str(flags))
        elif event in _CHANGES:
            self._note(event, _place(args[0]), "")
        elif event in _PROCESSES:
            self._note(event, "", repr(args)[:200])
        elif event == "os.fork":
            self.has_forked = True

    def _watched(self, write: Callable[..., int]) -> Callable[..., int]:
        def watched(fd: int, data: bytes, *offset: int) -> int:
            path = os.readlink(f"/proc/self/fd/{fd}")
            if path.startswith("/"):
                self._note("write", path, bytes(data).decode("latin-1"))
            return write(fd, data, *offset)

        return watched


def _place(path: object) -> str:
    if not isinstance(path, str | bytes):
        return f"descriptor {path}"
    directory, name = os.path.split(os.fsdecode(path))
    return os.path.join(os.path.realpath(directory), name)


def picture(directory: str) -> dict[str, tuple[object, ...]]:
    """Return everything below a directory, to the byte and the nanosecond."""
    found: dict[str, tuple[object, ...]] = {}
    for place, directories, files in os.walk(directory):
        for name in (*directories, *files):
            path = os.path.join(place, name)
            found[path] = _look(path)
    return found


def _look(path: str) -> tuple[object, ...]:
    status = os.lstat(path)
    facts: tuple[object, ...] = (status.st_mode, status.st_ino, status.st_uid)
    if os.path.islink(path):
        return (*facts, os.readlink(path))
    if not os.path.isfile(path):
        return facts
    # Some attributes can only be written.
    if not os.access(path, os.R_OK):
        return (*facts, status.st_mtime_ns, status.st_size)
    with open(path, "rb") as file:
        return (*facts, status.st_mtime_ns, file.read())
