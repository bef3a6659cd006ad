# SPDX-License-Identifier: Apache-2.0

"""The images that this host has, each proved, within a number of bytes.

One file for each image, named by its digest; besides, files whose names begin
with a dot: downloads. Two locks keep order, across threads and processes. Who
fetches an image has the image's, so that one download serves all who wait.
Who gives or takes names has the cache's, for a moment only. A third thing is
no lock of ours but the kernel's: a file that is in use cannot be evicted (see
:mod:`os_acc.bitstreams.cache_files`).
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
from os_acc.objects.digest import Digest
from os_acc.objects.image import Image
from os_acc.store import errors
from os_acc.store.locks import CACHE_LOCK, Locks, bitstream_lock

LOG = log.getLogger(__name__)

#: Bytes of its file system that the cache leaves to others: the leases are
#: on the same one.
SPARED = 64 << 20

# EFBIG: a limit of the process (setrlimit(2)), or of the file system.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclasses.dataclass(frozen=True, slots=True)
class CacheUsage:
    """What lies in the directory of the cache, and how much more may.

    :ivar taken: bytes of all images together.
    :ivar room: bytes that they could have, by what the cache may have and what
        is free on its disk.
    :ivar abandoned: paths of downloads whose processes are gone.
    :ivar strangers: paths of what is neither an image nor a download.
    """

    entries: tuple[CachedImage, ...]
    taken: int
    room: int
    abandoned: tuple[str, ...]
    strangers: tuple[str, ...]


class Cache:
    """Images below one directory, which is made when it is needed.

    :param directory: absolute path, on a local file system.
    :param size: bytes that all of them together may have.
    :ivar directory: that path.
    """

    def __init__(self, directory: str, size: int, locks: Locks) -> None:
        self.directory = directory
        self._size = size
        self._locks = locks

    def path(self, image: Image) -> str:
        """The file of an image, whether it is there or not.

        :raises ImageInvalid: the image has no hash.
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
        """The file of an image, for as long as the context lasts.

        If it is not there, it is fetched: once, however many wait for it.
        What has been in the cache is not hashed again. Nothing ends a sync to
        disk: a deadline that passes meanwhile is the next step's.

        :param deadline: on the clock of :func:`time.monotonic`.
        :raises CacheFull: there is no space for it.
        :raises ImageInvalid: it is not what it has to be.
        :raises ImageNotFound: it is gone.
        :raises ImageServiceUnavailable: it was not there at the deadline.
        :raises LockTimeout: another one still fetches it at the deadline.
        :raises StateUnavailable: the cache cannot be used.
        """
        digest = Digest.of(image)
        with self._told(image):
            file = self._pinned(digest, image, deadline)
            if file is None:
                file = self._obtained(digest, source, image, deadline, progress)
        with file:
            yield file

    @contextlib.contextmanager
    def kept(self, image: Image, deadline: float) -> Iterator[io.FileIO | None]:
        """The file of an image if it is here, for as long as the context lasts.

        :raises ImageInvalid: the image has no hash.
        :raises StateUnavailable: the cache cannot be used.
        """
        with self._told(image):
            file = self._pinned(Digest.of(image), image, deadline)
        with file or contextlib.nullcontext():
            yield file

    def entries(self) -> tuple[CachedImage, ...]:
        """Every image that is there, the one least recently used first.

        :raises StateUnavailable: the cache cannot be read.
        """
        with self._told():
            return _by_use(cache_files.scan(self.directory).entries)

    def survey(self) -> CacheUsage:
        """Look at all that is there, and change nothing.

        :raises StateUnavailable: the cache cannot be read.
        """
        with self._told():
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
        """Whether somebody uses an image at this moment.

        :raises StateUnavailable: the cache cannot be read.
        """
        with self._told():
            return cache_files.is_used(self._path(entry.digest))

    def prune(self, size: int, deadline: float) -> tuple[CachedImage, ...]:
        """Remove images until the others have this size; which those were.

        Those that are in use stay. What downloads have left whose processes
        are gone goes in any case.

        :raises LockTimeout: others changed the cache until the deadline.
        :raises StateUnavailable: the cache cannot be used.
        """
        with self._told(), self._locks.hold([CACHE_LOCK], deadline):
            found = self._swept()
            total = sum(each.size for each in found.entries)
            return tuple(self._evict(found.entries, total - size))

    def forget(self, image: Image, deadline: float) -> bool:
        """Drop an image that was found altered, so that it is fetched anew.

        :returns: whether it was; one that is sound stays.
        :raises DeviceStuck: it is not hashed by the deadline; it stays.
        :raises LockTimeout: others used it, or the cache, until the deadline.
        :raises StateUnavailable: the cache cannot be used.
        """
        return not self.verify(Digest.of(image), deadline)

    def verify(self, digest: Digest, deadline: float) -> bool:
        """Hash an image again, and drop it if it is not what it was.

        :returns: false if it was dropped.
        :raises DeviceStuck: it is not hashed by the deadline; it stays.
        :raises LockTimeout: others used it, or the cache, until the deadline.
        :raises StateUnavailable: the cache cannot be used.
        """
        path = self._path(digest)
        with self._told(), self._locks.hold([bitstream_lock(digest)], deadline):
            file = cache_files.pin(path, deadline)
            if file is None:
                return True
            with file:
                if cache_files.has_digest(file, digest, deadline):
                    return True
            LOG.error("%s was altered, and is removed", path)
            # Whoever uses it finds the same, and asks for it again. It may have
            # been evicted by now.
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
        # Whether it may be evicted soon is not worth an error.
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
            _make_way(path)
            with self._begun(image, deadline) as (file, temporary):
                fd = file.fileno()
                download.fetch(source, image, fd, self._size, deadline, progress)
                os.fsync(fd)
                with self._locks.hold([CACHE_LOCK], deadline):
                    if image.size is None:
                        self._make_room(image, 0)
                    os.rename(temporary, path)
                cache_files.sync_directory(self.directory)
                file.seek(0)
                return file

    @contextlib.contextmanager
    def _begun(self, image: Image, deadline: float) -> Iterator[tuple[io.FileIO, str]]:
        """A file with space for an image; gone at the end if it has no name."""
        size = image.size or 0
        with contextlib.ExitStack() as stack:
            with self._locks.hold([CACHE_LOCK], deadline):
                self._make_room(image, size)
                begun = stack.enter_context(cache_files.temporary(self.directory))
                cache_files.reserve(begun[0].fileno(), size)
            yield begun

    # -- room ----------------------------------------------------------------

    def _make_room(self, image: Image, size: int) -> None:
        found = self._swept()
        taken = sum(each.size for each in found.entries)
        loading = sum(map(_size, found.temporaries))
        free = _free(self.directory)
        excess = max(taken + loading + size - self._size, size - free)
        # Nothing is evicted in vain.
        if excess <= taken:
            excess -= sum(each.size for each in self._evict(found.entries, excess))
        if excess > 0:
            raise exception.CacheFull(
                f"image {image} of {size} bytes does not fit into"
                f" {self.directory}: of {self._size} bytes it may have, images take"
                f" {taken} and downloads {loading}; {max(0, free)} bytes are free on"
                f" its disk beside the {SPARED} that are left to others"
            )

    def _swept(self) -> cache_files.CacheContents:
        """What is there, but what dead downloads have left."""
        found = cache_files.scan(self.directory)
        living = tuple(
            each for each in found.temporaries if not cache_files.remove_unused(each)
        )
        return cache_files.CacheContents(found.entries, living)

    def _evict(
        self, entries: Iterable[CachedImage], excess: int
    ) -> Iterator[CachedImage]:
        """Remove as many bytes as there are too many; what has been removed."""
        for entry in _by_use(entries):
            if excess <= 0:
                return
            if cache_files.remove_unused(self._path(entry.digest)):
                LOG.info("Evicted %s of %d bytes", entry.digest, entry.size)
                excess -= entry.size
                yield entry

    @contextlib.contextmanager
    def _told(self, image: Image | None = None) -> Iterator[None]:
        """Tell what the file system refuses as an error of ours."""
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
    """Bytes that are left for images; less than none where it is too full."""
    space = os.statvfs(directory)
    return space.f_bavail * space.f_frsize - SPARED


def _size(path: str) -> int:
    with contextlib.suppress(FileNotFoundError):
        return os.lstat(path).st_size
    return 0


def _make_way(path: str) -> None:
    # Anything else gives way when a file gets its name.
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.rmdir(path)
