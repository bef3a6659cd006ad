# SPDX-License-Identifier: Apache-2.0

"""The cache of verified images on this host, limited in size.

Each image is a file named by its digest; files whose names begin with a dot are
downloads. Two locks apply across threads and processes: the lock of an image is held
during its download, so that one download serves all callers; the lock of the cache
is held briefly while names are created or removed.

In addition, each user of a file holds a shared lock on it (flock(2)), taken before the
file gets its name. The kernel releases it when the last process closes the file. A file
that can be locked exclusively is therefore unused: it is an image that may be evicted,
or the remains of a download whose process has ended.
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
from collections.abc import Iterable, Iterator

from oslo_log import log

from os_acc import deadlines, exception
from os_acc.bitstreams import options
from os_acc.bitstreams.download import Progress, download
from os_acc.bitstreams.source import ImageSource
from os_acc.objects.bitstream import Digest, Image
from os_acc.store import errors, state_files
from os_acc.store.locks import CACHE_LOCK, Locks, bitstream_lock

LOG = log.getLogger(__name__)

#: Bytes that the cache leaves free on its file system, which also holds the leases.
SPARED = 64 << 20

# EFBIG: the limit of the process (setrlimit(2)) or of the file system.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

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

    :ivar entries: the images, the least recently used first.
    :ivar temporaries: the paths of downloads, running or abandoned.
    :ivar strangers: the paths of other files, which are never changed.
    """

    entries: tuple[CachedImage, ...]
    temporaries: tuple[str, ...]
    strangers: tuple[str, ...] = ()

    @property
    def taken(self) -> int:
        """Bytes of all images."""
        return sum(each.size for each in self.entries)


class Cache:
    """A cache of images in a directory, which is created on demand.

    :param state: absolute path of the state directory, on a local file system.
    :param size: the limit on the total size in bytes.
    :ivar directory: the path of the cache.
    """

    def __init__(self, state: str, size: int) -> None:
        self.directory = os.path.join(state, options.DIRECTORY)
        self._size = size
        self._locks = Locks(state)

    def path(self, image: Image) -> str:
        """Return the path of an image's file, whether it exists or not.

        :raises ImageUnusable: the image has no hash.
        """
        return self._path(Digest.of(image))

    def _path(self, digest: Digest) -> str:
        return os.path.join(self.directory, digest.file_name)

    @contextlib.contextmanager
    def fetched(
        self,
        source: ImageSource,
        image: Image,
        deadline: float,
        progress: Progress | None = None,
    ) -> Iterator[io.FileIO]:
        """Provide the file of an image for the duration of the context.

        A missing file is downloaded, once for all concurrent callers. A cached file is
        not hashed again. The sync to disk cannot be interrupted: the next step detects
        a deadline that passes meanwhile.

        :param deadline: on the clock of :func:`time.monotonic`.
        :raises CacheFull: there is not enough space.
        :raises ImageUnusable: its data do not match its hash or size.
        :raises ImageNotFound: it is gone.
        :raises ServiceUnavailable: the download did not end in time.
        :raises LockTimeout: another download of the image did not end in time.
        :raises StateUnavailable: the cache cannot be used.
        """
        with self._storage_errors(image):
            file = self._pinned(image, deadline)
            if file is None:
                file = self._obtained(source, image, deadline, progress)
        with file:
            yield file

    @contextlib.contextmanager
    def kept(self, image: Image, deadline: float) -> Iterator[io.FileIO | None]:
        """Provide the file of an image, or None if it is not cached.

        :raises ImageUnusable: the image has no hash.
        :raises StateUnavailable: the cache cannot be used.
        """
        with self._storage_errors(image):
            file = self._pinned(image, deadline)
        with file or contextlib.nullcontext():
            yield file

    def survey(self) -> CacheContents:
        """Return the contents, of the downloads the abandoned ones; change nothing.

        :raises StateUnavailable: the cache cannot be read.
        """
        with self._storage_errors():
            found = _scan(self.directory)
            abandoned = tuple(p for p in found.temporaries if not _is_used(p))
            return dataclasses.replace(found, temporaries=abandoned)

    def capacity(self, taken: int) -> int:
        """Return the bytes that images can have in total, by the limit and the disk.

        :param taken: bytes of all images.
        :raises StateUnavailable: the cache cannot be read.
        """
        with self._storage_errors(), contextlib.suppress(FileNotFoundError):
            return max(0, min(self._size, taken + _free(self.directory)))
        return self._size

    def is_used(self, entry: CachedImage) -> bool:
        """Return whether an image is in use.

        :raises StateUnavailable: the cache cannot be read.
        """
        with self._storage_errors():
            return _is_used(self._path(entry.digest))

    def prune(self, size: int, deadline: float) -> tuple[CachedImage, ...]:
        """Evict images down to a total of ``size`` bytes; return the evicted ones.

        Images in use stay. Abandoned downloads are always removed.

        :raises LockTimeout: others changed the cache until the deadline.
        :raises StateUnavailable: the cache cannot be used.
        """
        with self._storage_errors(), self._locks.hold([CACHE_LOCK], deadline):
            found = self._swept()
            return tuple(self._evict(found.entries, found.taken - size))

    def verify(self, digest: Digest, deadline: float) -> bool:
        """Hash an image again, and remove it if it was altered.

        :returns: False if it was removed.
        :raises DeviceStuck: it was not hashed in time; it stays.
        :raises LockTimeout: others used it, or the cache, until the deadline.
        :raises StateUnavailable: the cache cannot be used.
        """
        path, lock = self._path(digest), bitstream_lock(digest)
        with self._storage_errors(), self._locks.hold([lock], deadline):
            file = _pin(path, deadline)
            if file is None:
                return True
            with file:
                hashing, buffer = digest.new(), memoryview(bytearray(_PIECE))
                while size := file.readinto(buffer):
                    deadlines.left(deadline)
                    hashing.update(buffer[:size])
                if hashing.hexdigest() == digest.value:
                    return True
            LOG.error("removing %s from the cache: the file was altered", path)
            # Its users detect the same, and fetch it again. It may have been
            # evicted by now.
            with (
                self._locks.hold([CACHE_LOCK], deadline),
                contextlib.suppress(FileNotFoundError),
            ):
                os.unlink(path)
            return False

    # -- a download ----------------------------------------------------------

    def _pinned(self, image: Image, deadline: float) -> io.FileIO | None:
        file = _pin(self.path(image), deadline)
        if file is None:
            return None
        size = os.fstat(file.fileno()).st_size
        if image.size not in (None, size):
            file.close()
            return None
        # A wrong time of use is not worth an error.
        with contextlib.suppress(OSError):
            os.utime(file.fileno())
        return file

    def _obtained(
        self,
        source: ImageSource,
        image: Image,
        deadline: float,
        progress: Progress | None,
    ) -> io.FileIO:
        with self._locks.hold([bitstream_lock(Digest.of(image))], deadline):
            file = self._pinned(image, deadline)
            if file is not None:
                return file
            os.makedirs(self.directory, mode=0o750, exist_ok=True)
            path = self.path(image)
            # rename(2) replaces a file, but not a directory.
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.rmdir(path)
            # A failed download is removed.
            with contextlib.ExitStack() as begun:
                with self._locks.hold([CACHE_LOCK], deadline):
                    self._make_room(image, image.size or 0)
                    file, unnamed = begun.enter_context(_new_file(self.directory))
                    fd = file.fileno()
                    _reserve(fd, image.size or 0)
                download(source, image, fd, self._size, deadline, progress)
                os.fsync(fd)
                with self._locks.hold([CACHE_LOCK], deadline):
                    if image.size is None:
                        self._make_room(image, 0)
                    os.rename(unnamed, path)
                state_files.sync_directory(self.directory)
                file.seek(0)
                return file

    # -- room ----------------------------------------------------------------

    def _make_room(self, image: Image, size: int) -> None:
        found = self._swept()
        taken, loading = found.taken, sum(map(_size, found.temporaries))
        free = _free(self.directory)
        excess = max(taken + loading + size - self._size, size - free)
        # Evict nothing if that would not suffice.
        if excess <= taken:
            excess -= sum(each.size for each in self._evict(found.entries, excess))
        if excess > 0:
            raise exception.CacheFull(
                f"image {image} of {size} bytes does not fit into "
                f"{self.directory}: images take {taken} and downloads "
                f"{loading} of {self._size} bytes; {max(0, free)} bytes are "
                f"free on its disk, beside a reserve of {SPARED}"
            )

    def _swept(self) -> CacheContents:
        """Remove abandoned downloads, and return the other contents."""
        found = _scan(self.directory)
        living = tuple(each for each in found.temporaries if not _remove_unused(each))
        return CacheContents(found.entries, living)

    def _evict(
        self, entries: Iterable[CachedImage], excess: int
    ) -> Iterator[CachedImage]:
        """Evict images in this order, of ``excess`` bytes in total; yield them."""
        for entry in entries:
            if excess <= 0:
                return
            if _remove_unused(self._path(entry.digest)):
                LOG.info("evicted %s (%d bytes)", entry.digest, entry.size)
                excess -= entry.size
                yield entry

    @contextlib.contextmanager
    def _storage_errors(self, image: Image | None = None) -> Iterator[None]:
        """Translate OSError."""
        try:
            yield
        except OSError as error:
            if image is None or error.errno not in _NO_SPACE:
                place = error.filename or self.directory
                raise errors.from_os_error(error, os.fsdecode(place)) from error
            raise exception.CacheFull(
                f"no space is left in {self.directory} for image {image} of"
                f" {image.size} bytes: {error.strerror}"
            ) from error


def _free(directory: str) -> int:
    """Return the bytes that images may use; negative if the disk is too full."""
    space = os.statvfs(directory)
    return space.f_bavail * space.f_frsize - SPARED


def _size(path: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        return os.lstat(path).st_size
    return 0


# -- files, and the detection of files in use -------------------------------------


def _scan(directory: str) -> CacheContents:
    """List the cache directory."""
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
    entries.sort(key=lambda each: (each.used, each.digest.value))
    return CacheContents(tuple(entries), tuple(temporaries), tuple(strangers))


def _pin(path: str, deadline: float) -> io.FileIO | None:
    """Open a file and keep it from eviction until it is closed.

    :returns: None if there is no file.
    :raises LockTimeout: another process was removing it until the deadline.
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


def _is_used(path: str) -> bool:
    with _unused(path) as unused:
        return unused is False


def _remove_unused(path: str) -> bool:
    """Remove a file that is unused and ours; return whether it was removed.

    The caller holds the cache's lock: else the name could be another file's by now.
    """
    with _unused(path) as unused:
        if unused:
            try:
                os.unlink(path)
            except PermissionError:
                return False
        return bool(unused)


@contextlib.contextmanager
def _new_file(directory: str) -> Iterator[tuple[io.FileIO, str]]:
    """Yield a new file, in use, and its path; an exception removes it."""
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


def _reserve(fd: int, size: int) -> None:
    """Allocate disk space for a file, if the file system supports it."""
    if not size:
        return
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise


@contextlib.contextmanager
def _unused(path: str) -> Iterator[bool | None]:
    """Yield whether a file is unused, while a lock keeps it so; None: there is none."""
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
