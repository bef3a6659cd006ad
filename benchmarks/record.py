# SPDX-License-Identifier: Apache-2.0

"""Record the reads of a function."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from benchmarks.reads import Directory, Kind, Looks, Reads
from tests.stress import processes

# Python's audit events of the recorded calls.
_EVENTS = ("open", "os.listdir", "os.scandir")


class Unseen(Exception):
    """The recorder has missed a read."""


def record(root: str, run: Callable[[], object]) -> Reads:
    """Return a function's reads below a directory, each once.

    The function runs in a child: the recorder and its memory do not affect the
    timed runs.

    :raises Unseen: it reads in a way that the recorder does not support.
    """
    ended = processes.call(lambda: _record(root, run))
    if ended.trouble:
        raise Unseen(ended.trouble)
    reads: Reads = ended.value
    return reads


def _record(root: str, run: Callable[[], object]) -> Reads:
    recorder = _Recorder(os.path.join(root, ""))
    recorder.install()
    run()
    return recorder.reads()


class _Recorder:
    def __init__(self, root: str) -> None:
        self._root = root
        self._lock = threading.RLock()
        # The index of each open directory among the directories, by file descriptor.
        self._open: dict[int, int] = {}
        self._places: dict[str, int] = {}
        self._opened_by: list[tuple[str, int | None]] = []
        self._noted: dict[int | None, dict[tuple[Kind, bool], dict[str, None]]] = {}
        self._calls = 0
        self._events = 0

    def install(self) -> None:
        """Replace the functions of ``os`` permanently."""
        real_open, real_close = os.open, os.close

        def open_(
            path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
        ) -> int:
            self._calls += 1
            kind = Kind.FILE if flags & os.O_ACCMODE == os.O_RDONLY else None
            fd = self._noting(
                kind if not flags & os.O_DIRECTORY else None,
                path,
                dir_fd,
                lambda: real_open(path, flags, mode, dir_fd=dir_fd),
            )
            if flags & os.O_DIRECTORY:
                self._opens(fd, path, dir_fd)
            return int(fd)

        def close(fd: int) -> None:
            with self._lock:
                self._open.pop(fd, None)
                real_close(fd)

        os.open, os.close = open_, close
        self._replace("readlink", Kind.LINK)
        self._replace("stat", Kind.STATE)
        self._replace("lstat", Kind.STATE)
        self._replace("access", Kind.STATE)
        self._replace("listdir", Kind.LISTING)
        self._replace("scandir", Kind.LISTING)
        sys.addaudithook(self._audit)

    def _replace(self, name: str, kind: Kind) -> None:
        real = getattr(os, name)

        def call(path: Any, *args: Any, dir_fd: int | None = None, **more: Any) -> Any:
            if kind is Kind.LISTING:
                self._calls += 1
            if dir_fd is not None:
                more["dir_fd"] = dir_fd
            if isinstance(path, int):
                return self._noting(kind, "", path, lambda: real(path, *args, **more))
            return self._noting(kind, path, dir_fd, lambda: real(path, *args, **more))

        setattr(os, name, call)

    def _noting(
        self, kind: Kind | None, path: Any, dir_fd: int | None, call: Callable[[], Any]
    ) -> Any:
        try:
            result = call()
        except OSError:
            # A directory that cannot be opened counts as an absent file.
            self._note(kind or Kind.FILE, False, path, dir_fd)
            raise
        if kind is not None:
            self._note(kind, True, path, dir_fd)
        return result

    def _note(self, kind: Kind, there: bool, path: Any, dir_fd: int | None) -> None:
        name = os.fsdecode(path)
        with self._lock:
            if dir_fd is None:
                if not name.startswith(self._root):
                    return
                place = None
            elif dir_fd in self._open:
                place = self._open[dir_fd]
            else:
                return
            looks = self._noted.setdefault(place, {})
            looks.setdefault((kind, there), {})[name] = None

    def _opens(self, fd: int, path: Any, dir_fd: int | None) -> None:
        name = os.fsdecode(path)
        with self._lock:
            above = None if dir_fd is None else self._open.get(dir_fd)
            whole = name if above is None else f"{above}/{name}"
            if above is None and not name.startswith(self._root):
                return
            if whole not in self._places:
                self._places[whole] = len(self._opened_by)
                self._opened_by.append((name, above))
            self._open[fd] = self._places[whole]

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event not in _EVENTS:
            return
        # The event of the built-in open() has a mode; that of os.open() has none.
        if event == "open" and args[1] is not None:
            if str(args[0]).startswith(self._root):
                raise Unseen(f"open({args[0]!r}) is not noted")
            return
        self._events += 1

    def reads(self) -> Reads:
        """Return the recorded reads.

        :raises Unseen: Python has reported more calls than were recorded.
        """
        if self._calls != self._events:
            raise Unseen(f"{self._events} calls, {self._calls} of them noted")
        parents = {above for _, above in self._opened_by}
        return Reads(
            self._looks(None),
            tuple(
                Directory(name, above, place in parents, self._looks(place))
                for place, (name, above) in enumerate(self._opened_by)
            ),
        )

    def _looks(self, place: int | None) -> tuple[Looks, ...]:
        return tuple(
            Looks(kind, there, tuple(names))
            for (kind, there), names in self._noted.get(place, {}).items()
        )
