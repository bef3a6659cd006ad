# SPDX-License-Identifier: Apache-2.0

"""The cache of verified images on this host, limited in size.

Each image is a file named by its digest; files whose names begin with a dot are
downloads. Two locks apply across threads and processes: the lock of an image is held
during its download, so that one download serves all callers; the lock of the cache
is held briefly while names are created or removed. In addition, the kernel's file
locks keep a file in use from eviction (see :mod:`os_acc.bitstreams.cache_files`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import io
import os
from collections.abc import Iterable, Iterator

from oslo_log import log

from os_acc import exception
from os_acc.bitstreams import cache_files, download
from os_acc.bitstreams.cache_files import CachedImage
from os_acc.bitstreams.source import ImageSource
from os_acc.objects.bitstream import Digest, Image
from os_acc.store import errors, state_files
from os_acc.store.locks import CACHE_LOCK, Locks, bitstream_lock

LOG = log.getLogger(__name__)

#: Bytes that the cache leaves free on its file system, which also holds the leases.
SPARED = 64 << 20

# EFBIG: the limit of the process (setrlimit(2)) or of the file system.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclasses.dataclass(frozen=True, slots=True)
class CacheUsage:
    """The contents and the capacity of the cache.

    :ivar taken: bytes of all images.
    :ivar room: bytes that images can have in total, limited by the cache's size and
        the free disk space.
    :ivar abandoned: the paths of downloads whose processes have ended.
    :ivar strangers: the paths of files that are neither images nor downloads.
    """

    entries: tuple[CachedImage, ...]
    taken: int
    room: int
    abandoned: tuple[str, ...]
    strangers: tuple[str, ...]


class Cache:
    """A cache of images in a directory, which is created on demand.

    :param directory: absolute path, on a local file system.
    :param size: the limit on the total size in bytes.
    :ivar directory: the path.
    """

    def __init__(self, directory: str, size: int, locks: Locks) -> None:
        self.directory = directory
        self._size = size
        self._locks = locks

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
        progress: download.Progress | None = None,
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
        digest = Digest.of(image)
        with self._storage_errors(image):
            file = self._pinned(digest, image, deadline)
            if file is None:
                file = self._obtained(digest, source, image, deadline, progress)
        with file:
            yield file

    @contextlib.contextmanager
    def kept(self, image: Image, deadline: float) -> Iterator[io.FileIO | None]:
        """Provide the file of an image, or None if it is not cached.

        :raises ImageUnusable: the image has no hash.
        :raises StateUnavailable: the cache cannot be used.
        """
        with self._storage_errors(image):
            file = self._pinned(Digest.of(image), image, deadline)
        with file or contextlib.nullcontext():
            yield file

    def entries(self) -> tuple[CachedImage, ...]:
        """Return all cached images, the least recently used first.

        :raises StateUnavailable: the cache cannot be read.
        """
        with self._storage_errors():
            return _by_use(cache_files.scan(self.directory).entries)

    def survey(self) -> CacheUsage:
        """Return the usage of the cache, without any change.

        :raises StateUnavailable: the cache cannot be read.
        """
        with self._storage_errors():
            found = cache_files.scan(self.directory)
            taken = sum(each.size for each in found.entries)
            room = self._size
            with contextlib.suppress(FileNotFoundError):
                room = max(0, min(room, taken + _free(self.directory)))
            return CacheUsage(
                _by_use(found.entries),
                taken,
                room,
                tuple(p for p in found.temporaries if not cache_files.is_used(p)),
                found.strangers,
            )

    def is_used(self, entry: CachedImage) -> bool:
        """Return whether an image is in use.

        :raises StateUnavailable: the cache cannot be read.
        """
        with self._storage_errors():
            return cache_files.is_used(self._path(entry.digest))

    def prune(self, size: int, deadline: float) -> tuple[CachedImage, ...]:
        """Evict images down to a total of ``size`` bytes; return the evicted ones.

        Images in use stay. Abandoned downloads are always removed.

        :raises LockTimeout: others changed the cache until the deadline.
        :raises StateUnavailable: the cache cannot be used.
        """
        with self._storage_errors(), self._locks.hold([CACHE_LOCK], deadline):
            found = self._swept()
            total = sum(each.size for each in found.entries)
            return tuple(self._evict(found.entries, total - size))

    def verify(self, digest: Digest, deadline: float) -> bool:
        """Hash an image again, and remove it if it was altered.

        :returns: False if it was removed.
        :raises DeviceStuck: it was not hashed in time; it stays.
        :raises LockTimeout: others used it, or the cache, until the deadline.
        :raises StateUnavailable: the cache cannot be used.
        """
        path = self._path(digest)
        with (
            self._storage_errors(),
            self._locks.hold([bitstream_lock(digest)], deadline),
        ):
            file = cache_files.pin(path, deadline)
            if file is None:
                return True
            with file:
                if cache_files.has_digest(file, digest, deadline):
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

    def _pinned(
        self, digest: Digest, image: Image, deadline: float
    ) -> io.FileIO | None:
        file = cache_files.pin(self._path(digest), deadline)
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
        digest: Digest,
        source: ImageSource,
        image: Image,
        deadline: float,
        progress: download.Progress | None,
    ) -> io.FileIO:
        with self._locks.hold([bitstream_lock(digest)], deadline):
            file = self._pinned(digest, image, deadline)
            if file is not None:
                return file
            os.makedirs(self.directory, mode=0o750, exist_ok=True)
            path = self._path(digest)
            # rename(2) replaces a file, but not a directory.
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.rmdir(path)
            # A failed download is removed.
            with contextlib.ExitStack() as begun:
                with self._locks.hold([CACHE_LOCK], deadline):
                    self._make_room(image, image.size or 0)
                    file, temporary = begun.enter_context(
                        cache_files.temporary(self.directory)
                    )
                    fd = file.fileno()
                    cache_files.reserve(fd, image.size or 0)
                download.fetch(source, image, fd, self._size, deadline, progress)
                os.fsync(fd)
                with self._locks.hold([CACHE_LOCK], deadline):
                    if image.size is None:
                        self._make_room(image, 0)
                    os.rename(temporary, path)
                state_files.sync_directory(self.directory)
                file.seek(0)
                return file

    # -- room ----------------------------------------------------------------

    def _make_room(self, image: Image, size: int) -> None:
        found = self._swept()
        taken = sum(each.size for each in found.entries)
        loading = sum(map(_size, found.temporaries))
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

    def _swept(self) -> cache_files.CacheContents:
        """Remove abandoned downloads, and return the other contents."""
        found = cache_files.scan(self.directory)
        living = tuple(
            each for each in found.temporaries if not cache_files.remove_unused(each)
        )
        return cache_files.CacheContents(found.entries, living)

    def _evict(
        self, entries: Iterable[CachedImage], excess: int
    ) -> Iterator[CachedImage]:
        """Evict images of at least ``excess`` bytes in total; yield them."""
        for entry in _by_use(entries):
            if excess <= 0:
                return
            if cache_files.remove_unused(self._path(entry.digest)):
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


def _by_use(entries: Iterable[CachedImage]) -> tuple[CachedImage, ...]:
    return tuple(sorted(entries, key=lambda each: (each.used, each.digest.value)))


def _free(directory: str) -> int:
    """Return the bytes that images may use; negative if the disk is too full."""
    space = os.statvfs(directory)
    return space.f_bavail * space.f_frsize - SPARED


def _size(path: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        return os.lstat(path).st_size
    return 0
