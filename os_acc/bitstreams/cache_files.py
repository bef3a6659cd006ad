# SPDX-License-Identifier: Apache-2.0

"""The files of the cache: which of them are in use, and which may go.

Who uses a file has a shared lock on it (flock(2)), from before it has its
name on. The kernel drops that with the last process that has the file open.
So what can be locked exclusively is used by nobody: an image that may be
evicted, or the leftover of a download whose process is gone.
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
from os_acc.objects.digest import Digest

# A file that is being evicted is locked for a moment only.
_POLL_INTERVAL = 0.005
_PIECE = 1 << 20
# None; a link; a pipe or a socket; another user's.
_NOT_OURS = (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.EACCES)
# Neither the target of a link nor a pipe that nobody writes to.
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclasses.dataclass(frozen=True, slots=True)
class CachedImage:
    """One image in the cache.

    :ivar size: bytes.
    :ivar used: when it was last used, as :func:`time.time` has it.
    """

    digest: Digest
    size: int
    used: float


@dataclasses.dataclass(frozen=True, slots=True)
class CacheContents:
    """What lies in the directory of the cache.

    :ivar temporaries: the paths of downloads, whether they live or not.
    :ivar strangers: the paths of all else; nothing here touches that.
    """

    entries: tuple[CachedImage, ...]
    temporaries: tuple[str, ...]
    strangers: tuple[str, ...] = ()


def scan(directory: str) -> CacheContents:
    """Look once at everything that is there.

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
    """Open a file which then stays until it is closed; None if there is none.

    :raises LockTimeout: somebody has been about to remove it until the deadline.
    :raises OSError: it cannot be read.
    """
    while True:
        fd = _opened(path)
        if fd is None:
            return None
        file = io.FileIO(fd, "r")
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            # Else its name was taken away before it was locked.
            if os.fstat(fd).st_nlink:
                return file
        except BlockingIOError as error:
            if time.monotonic() >= deadline:
                file.close()
                raise exception.LockTimeout(
                    f"{path} was being removed, and is still there"
                ) from error
            time.sleep(_POLL_INTERVAL)
        except BaseException:
            file.close()
            raise
        file.close()


def has_digest(file: io.FileIO, digest: Digest, deadline: float) -> bool:
    """Whether what is in a file, from where it is read on, hashes to a digest.

    :raises DeviceStuck: the deadline has passed.
    :raises OSError: it cannot be read.
    """
    hashing, buffer = digest.new(), memoryview(bytearray(_PIECE))
    while size := file.readinto(buffer):
        deadlines.left(deadline)
        hashing.update(buffer[:size])
    return hashing.hexdigest() == digest.value


def is_used(path: str) -> bool:
    """Whether somebody uses a file at this moment.

    :raises OSError: it cannot be opened.
    """
    with _unused(path) as unused:
        return unused is False


def remove_unused(path: str) -> bool:
    """Remove a file unless it is in use, or not ours; whether it is gone.

    Only who has the cache's lock may do so: the name could else be another
    file's by then.

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
    """A file to write to, in use, which is removed if it still has its name.

    :raises OSError: it cannot be made.
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
    """Take the space for a file on its disk, where the file system can.

    :raises OSError: there is not as much.
    """
    if not size:
        return
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise


def sync_directory(directory: str) -> None:
    """Have the names in a directory survive the loss of power."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _unused(path: str) -> Iterator[bool | None]:
    """Whether nobody uses a file; if so, nobody can begin to meanwhile.

    None if there is no file.
    """
    fd = _opened(path)
    if fd is None:
        yield None
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(fd)


def _opened(path: str) -> int | None:
    """A regular file; None where there is none, whatever else has the name."""
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
    """Whether it is root's lost+found, which a file system has at its top.

    Only of a directory that may be a mount point: a name alone proves nothing.
    """
    if os.path.basename(path) != "lost+found":
        return False
    try:
        status = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == 0
