# SPDX-License-Identifier: Apache-2.0

"""Files of the cache, and the detection of files in use.

Each user of a file holds a shared lock on it (flock(2)), taken before the file gets
its name. The kernel releases it when the last process closes the file. A file that
can be locked exclusively is therefore unused: it is an image that may be evicted, or
the remains of a download whose process has ended.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import io
import os
import stat
import tempfile
import time
from collections.abc import Iterator

from os_acc import deadlines, exception
from os_acc.objects.bitstream import Digest

_PIECE = 1 << 20
# No file; a link; a pipe or a socket; another user's file.
_NOT_OURS = (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.EACCES)
# Do not follow links, and do not block on a pipe.
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclasses.dataclass(frozen=True, slots=True)
class CachedImage:
    """An image in the cache.

    :ivar size: bytes.
    :ivar used: the time of its last use, as of :func:`time.time`.
    """

    digest: Digest
    size: int
    used: float


@dataclasses.dataclass(frozen=True, slots=True)
class CacheContents:
    """The contents of the cache directory.

    :ivar temporaries: the paths of downloads, running or abandoned.
    :ivar strangers: the paths of other files, which are never changed.
    """

    entries: tuple[CachedImage, ...]
    temporaries: tuple[str, ...]
    strangers: tuple[str, ...] = ()


def scan(directory: str) -> CacheContents:
    """List the cache directory.

    :raises OSError: it cannot be read.
    """
    entries: list[CachedImage] = []
    temporaries: list[str] = []
    strangers: list[str] = []
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as found:
        for each in found:
            is_temporary = each.name.startswith(".")
            digest = None if is_temporary else Digest.of_file_name(each.name)
            try:
                status = each.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if is_lost_and_found(each.path):
                # The cache may be a mount point.
                continue
            if not stat.S_ISREG(status.st_mode):
                strangers.append(each.path)
            elif digest is not None:
                entries.append(CachedImage(digest, status.st_size, status.st_mtime))
            else:
                (temporaries if is_temporary else strangers).append(each.path)
    return CacheContents(tuple(entries), tuple(temporaries), tuple(strangers))


def pin(path: str, deadline: float) -> io.FileIO | None:
    """Open a file and keep it from eviction until it is closed.

    :returns: None if there is no file.
    :raises LockTimeout: another process was removing it until the deadline.
    :raises OSError: it cannot be read.
    """
    while True:
        fd = _opened(path)
        if fd is None:
            return None
        file = io.FileIO(fd, "r")
        try:
            if not deadlines.lock_file(fd, fcntl.LOCK_SH, deadline):
                raise exception.LockTimeout(
                    f"{path} was being removed, and is still there"
                )
            # With no link left, it was removed before it was locked.
            if os.fstat(fd).st_nlink:
                return file
        except BaseException:
            file.close()
            raise
        file.close()


def has_digest(file: io.FileIO, digest: Digest, deadline: float) -> bool:
    """Return whether a file has a digest, from its current position on.

    :raises DeviceStuck: the deadline has passed.
    :raises OSError: it cannot be read.
    """
    hashing, buffer = digest.new(), memoryview(bytearray(_PIECE))
    while size := file.readinto(buffer):
        deadlines.left(deadline)
        hashing.update(buffer[:size])
    return hashing.hexdigest() == digest.value


def is_used(path: str) -> bool:
    """Return whether a file is in use.

    :raises OSError: it cannot be opened.
    """
    with _unused(path) as unused:
        return unused is False


def remove_unused(path: str) -> bool:
    """Remove a file that is unused and ours; return whether it was removed.

    The caller holds the cache's lock: else the name could be another file's by
    now.

    :raises OSError: it cannot be removed.
    """
    with _unused(path) as unused:
        if unused:
            try:
                os.unlink(path)
            except PermissionError:
                return False
        return bool(unused)


@contextlib.contextmanager
def temporary(directory: str) -> Iterator[tuple[io.FileIO, str]]:
    """Yield a new file, in use, and its path; an exception removes it.

    :raises OSError: it cannot be created.
    """
    fd, path = tempfile.mkstemp(prefix=".", dir=directory)
    file = io.FileIO(fd, "r+")
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        yield file, path
    except BaseException:
        file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        raise


def reserve(fd: int, size: int) -> None:
    """Allocate disk space for a file, if the file system supports it.

    :raises OSError: there is not enough space.
    """
    if not size:
        return
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise


@contextlib.contextmanager
def _unused(path: str) -> Iterator[bool | None]:
    """Yield whether a file is unused, while a lock keeps it so.

    Yield None if there is no file.
    """
    fd = _opened(path)
    if fd is None:
        yield None
        return
    try:
        yield deadlines.lock_file(fd, fcntl.LOCK_EX, time.monotonic())
    finally:
        os.close(fd)


def _opened(path: str) -> int | None:
    """Open a regular file; return None for anything else of that name."""
    try:
        fd = os.open(path, _FLAGS)
    except OSError as error:
        if error.errno in _NOT_OURS:
            return None
        raise
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None


def is_lost_and_found(path: str) -> bool:
    """Return whether a path is root's lost+found, at the top of a file system.

    The caller has to know that its directory may be a mount point: the name
    alone proves nothing.
    """
    if os.path.basename(path) != "lost+found":
        return False
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == 0
