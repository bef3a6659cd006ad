# SPDX-License-Identifier: Apache-2.0

"""A disk that is full from one write of the store on.

The store writes through SQLite, and a few files itself. Both kinds of writes are
refused at the system call, so that SQLite's own code for a full disk runs:

* SQLite's interface for such tests (``xSetSystemCall`` of its default VFS,
  https://www.sqlite.org/c3ref/vfs.html) replaces its open, write and
  ftruncate; they return -1 with ENOSPC. Its fsync cannot be replaced so: the
  methods of its files and its deletion of files are wrapped instead.
* An audit hook refuses the files that Python itself opens, makes, links or
  renames, and its fsync is wrapped.

A small file system would have to be mounted, which an ordinary user may not do;
RLIMIT_FSIZE strikes no write below the limit, and fails without ENOSPC; and
neither strikes one chosen write after the other.

The hooks stay for good, so this is for processes that end with the run.
"""

from __future__ import annotations

import _sqlite3
import contextlib
import ctypes
import errno
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

# include/sqlite3.h
_OK = 0
_IOERR_FSYNC = 10 | 4 << 8
_IOERR_DIR_FSYNC = 10 | 5 << 8

# The very library that Python's module uses, wherever it is.
_library = ctypes.CDLL(_sqlite3.__file__)
_Open = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_int, use_errno=True
)
_Pwrite = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t,
    *(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64),
    use_errno=True,
)
_Ftruncate = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_int64, use_errno=True
)
_Delete = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)
_Sync = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


class _Methods(ctypes.Structure):
    """sqlite3_io_methods."""

    _fields_ = [
        ("version", ctypes.c_int),
        *((name, ctypes.c_void_p) for name in ("close", "read", "write", "truncate")),
        ("sync", _Sync),
        ("others", ctypes.c_void_p * 13),
    ]


class _File(ctypes.Structure):
    """sqlite3_file."""

    _fields_ = [("methods", ctypes.POINTER(_Methods))]


_OpenFile = ctypes.CFUNCTYPE(
    ctypes.c_int,
    *(ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(_File)),
    *(ctypes.c_int, ctypes.c_void_p),
)


class _Vfs(ctypes.Structure):
    """sqlite3_vfs."""


_SetCall = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(_Vfs), ctypes.c_char_p, ctypes.c_void_p
)
_GetCall = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Vfs), ctypes.c_char_p)
_Vfs._fields_ = [
    ("version", ctypes.c_int),
    ("file_size", ctypes.c_int),
    ("max_path", ctypes.c_int),
    ("next", ctypes.c_void_p),
    ("name", ctypes.c_char_p),
    ("data", ctypes.c_void_p),
    ("open", _OpenFile),
    ("delete", _Delete),
    ("others", ctypes.c_void_p * 11),
    ("set_call", _SetCall),
    ("get_call", _GetCall),
]
_library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)


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
        self._keep: list[object] = []
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

    @property
    def is_full(self) -> bool:
        count = len(self.writes)
        if not self._is_watched or not self._full_at:
            return False
        return count >= self._full_at if self._stays else count == self._full_at

    def _refuses(self, what: str, path: object) -> bool:
        """Count a write; return whether there is no space for it."""
        if not self._is_watched or not isinstance(path, str | bytes):
            return False
        name = os.fsdecode(path)
        if not name.startswith(self._directory):
            return False
        self.writes.append(f"{what} {os.path.relpath(name, self._directory)}")
        return self.is_full

    # -- writes of Python -----------------------------------------------------

    def _install(self) -> None:
        sys.addaudithook(self._audit)
        fsync, statvfs = os.fsync, os.statvfs

        def synced(fd: Any) -> None:
            if self._refuses("fsync", _path_of(fd)):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            fsync(fd)

        def measured(path: Any) -> os.statvfs_result:
            found = statvfs(path)
            if not self.is_full:
                return found
            return os.statvfs_result((*found[:4], 0, *found[5:]))

        os.fsync = synced
        os.statvfs = measured
        self._install_in_sqlite()

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
        if (is_new or event == "os.rename") and self._refuses(event, path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    # -- writes of SQLite -----------------------------------------------------

    def _install_in_sqlite(self) -> None:
        vfs = _library.sqlite3_vfs_find(None)
        self._replace(vfs, b"open", _Open, self._opened)
        self._replace(vfs, b"ftruncate", _Ftruncate, self._truncated)
        for name in (b"pwrite", b"pwrite64"):
            self._replace(vfs, name, _Pwrite, self._written)
        delete, opening = vfs.contents.delete, vfs.contents.open
        real_delete = _Delete(ctypes.cast(delete, ctypes.c_void_p).value)
        real_open = _OpenFile(ctypes.cast(opening, ctypes.c_void_p).value)

        def deleted(place: int, path: bytes, sync: int) -> int:
            answer = real_delete(place, path, sync)
            if answer == _OK and sync and self._refuses("fsync directory of", path):
                return _IOERR_DIR_FSYNC
            return answer

        def opened(place: int, path: bytes, file: Any, flags: int, out: int) -> int:
            answer = real_open(place, path, file, flags, out)
            if answer == _OK and path and file.contents.methods:
                file.contents.methods = self._wrapped(file.contents.methods, path)
            return answer

        vfs.contents.delete = self._kept(_Delete(deleted))
        vfs.contents.open = self._kept(_OpenFile(opened))

    def _wrapped(self, methods: Any, path: bytes) -> Any:
        own = _Methods.from_buffer_copy(methods.contents)
        real = _Sync(ctypes.cast(own.sync, ctypes.c_void_p).value)

        def synced(file: int, flags: int) -> int:
            return _IOERR_FSYNC if self._refuses("fsync", path) else real(file, flags)

        own.sync = self._kept(_Sync(synced))
        return ctypes.pointer(self._kept(own))

    def _replace(
        self,
        vfs: Any,
        name: bytes,
        kind: Any,
        wrap: Callable[[Callable[..., int]], Callable[..., int]],
    ) -> None:
        address = vfs.contents.get_call(vfs, name)
        if address is None:
            return
        own = self._kept(kind(wrap(kind(address))))
        answer = vfs.contents.set_call(vfs, name, ctypes.cast(own, ctypes.c_void_p))
        assert answer == _OK, f"SQLite does not let {name!r} be replaced"

    def _opened(self, real: Callable[..., int]) -> Callable[..., int]:
        def opened(path: bytes, flags: int, mode: int) -> int:
            new = flags & os.O_CREAT and not os.path.lexists(path)
            if new and self._refuses("open", path):
                return _no_space()
            return real(path, flags, mode)

        return opened

    def _written(self, real: Callable[..., int]) -> Callable[..., int]:
        def written(fd: int, data: int, size: int, offset: int) -> int:
            refused = self._refuses("write", _path_of(fd))
            return _no_space() if refused else real(fd, data, size, offset)

        return written

    def _truncated(self, real: Callable[..., int]) -> Callable[..., int]:
        def truncated(fd: int, size: int) -> int:
            refused = self._refuses("ftruncate", _path_of(fd))
            return _no_space() if refused else real(fd, size)

        return truncated

    def _kept(self, value: Any) -> Any:
        # SQLite has only the address; no other reference keeps it alive.
        self._keep.append(value)
        return value


def _no_space() -> int:
    ctypes.set_errno(errno.ENOSPC)
    return -1


def _path_of(fd: Any) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")
