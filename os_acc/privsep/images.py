# SPDX-License-Identifier: Apache-2.0

"""The cached images of bitstreams, as privileged code reads them.

The helper derives the path from the digest and its own configuration. It reads
the file once: the bytes that were hashed are the bytes that are programmed, even
if the file changes meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from concurrent import futures

from oslo_config import cfg

from os_acc import deadlines, exception
from os_acc.bitstreams import shared_options
from os_acc.bitstreams.options import DIRECTORY
from os_acc.objects.digest import Digest
from os_acc.privsep import rootconf
from os_acc.privsep.outcome import ImageUnfit
from os_acc.privsep.rootconf import RootConf

#: Maximum size of an image in bytes. Programming holds the image in memory twice
#: (fme_pr() in drivers/fpga/dfl-fme-pr.c has no limit).
SIZE_LIMIT = 2**30
_CHUNK = 2**20
_PAUSE = 0.005
# Maximum length of a base64 signature: that of an RSA key of 65536 bits.
_LONGEST = 2**14
_SEALS = (
    fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a special file must not block the helper.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclasses.dataclass(frozen=True, slots=True)
class Sealed:
    """An immutable image in memory (memfd_create(2), fcntl(2)).

    :ivar size: in bytes.
    """

    fd: int
    size: int


class Images:
    """The bitstream cache of a host.

    :param directory: None: the directory of the helper's own configuration.
    """

    def __init__(self, directory: str | None = None) -> None:
        self._directory = directory

    def directory(self) -> str:
        """Return the directory of the files.

        :raises ImageUnfit: the configuration lacks an absolute ``state_path``.
        """
        if self._directory is not None:
            return self._directory
        found = rootconf.current().state_path
        if found is None:
            found = self._configured()
        if not found or not os.path.isabs(found):
            raise ImageUnfit(errno.EINVAL, "image", "state_path is not absolute")
        return os.path.join(found, DIRECTORY)

    def _configured(self) -> str | None:
        cfg.CONF.register_opt(shared_options.STATE_PATH, group=shared_options.GROUP)
        try:
            found: str | None = cfg.CONF[shared_options.GROUP].state_path
        except cfg.Error as error:
            raise ImageUnfit(errno.EINVAL, "image", str(error)) from error
        return found

    @contextlib.contextmanager
    def sealed(self, digest: Digest, deadline: float) -> Iterator[Sealed]:
        """Read, verify and seal the image of this digest.

        :param deadline: on the clock of ``time.monotonic()``.
        :raises ImageUnfit: the image is missing, too large, not read in time, or does
            not match its digest.
        """
        try:
            memory = os.memfd_create("image", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            raise _unreadable(error) from error
        try:
            yield Sealed(memory, self._fill(memory, digest, deadline))
        finally:
            os.close(memory)

    def _fill(self, memory: int, digest: Digest, deadline: float) -> int:
        try:
            fd = _open(self.directory(), digest.file_name)
            try:
                size = _copy(fd, memory, digest, deadline)
            finally:
                os.close(fd)
            _seal(memory, deadline)
        except OSError as error:
            raise _unreadable(error) from error
        return size


current = Images()


def is_signature(value: object) -> bool:
    """Return whether a value is well-formed for :func:`check_signature`."""
    return (
        isinstance(value, tuple | list)
        and len(value) == 4
        # A subclass of str may be written differently than it is matched.
        and all(type(text) is str and len(text) <= _LONGEST for text in value)
    )


def check_signature(
    image: Sealed, signature: tuple[str, ...], root: RootConf, deadline: float
) -> None:
    """Verify the signature of an image, if root's configuration requires one.

    :raises ImageUnfit: no signer trusted by root signed the image.
    """
    if root.certificates is not None:
        # Only the programming context preloads it: cryptography imports slowly.
        from os_acc.privsep import signatures

        signatures.check(image.fd, signature, root.certificates, deadline)


def _open(directory: str, name: str) -> int:
    directory_fd = os.open(directory, _DIRECTORY)
    try:
        fd = os.open(name, _FILE, dir_fd=directory_fd)
    finally:
        os.close(directory_fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ImageUnfit(errno.EINVAL, "image", "not a file")
    return fd


def _copy(source: int, memory: int, digest: Digest, deadline: float) -> int:
    """Copy and hash a file at the same time; return its size.

    Each chunk is hashed while it is written and the next one is read: with a
    second processor, the copy takes no extra time.
    """
    found, size = digest.new(), 0
    hashed = _begin(found.update, b"")
    while data := os.read(source, _CHUNK):
        size += len(data)
        # Counts bytes read instead of trusting fstat(2): the file may grow.
        if size > SIZE_LIMIT:
            raise ImageUnfit(errno.EFBIG, "image", str(SIZE_LIMIT))
        if time.monotonic() >= deadline:
            raise ImageUnfit(errno.ETIMEDOUT, "image")
        # At most two chunks are in memory, however slow the hash is.
        _end(hashed, deadline)
        hashed = _begin(found.update, data)
        left = memoryview(data)
        while left:
            left = left[os.write(memory, left) :]
    _end(hashed, deadline)
    if found.hexdigest() != digest.value:
        raise ImageUnfit(errno.EBADMSG, "digest", found.hexdigest())
    return size


def _begin(update: Callable[[bytes], None], data: bytes) -> futures.Future[None]:
    """Hash a chunk in a thread, or inline if no thread is available."""
    try:
        return deadlines.begin(update, data)
    except exception.DeviceStuck:
        update(data)
        done: futures.Future[None] = futures.Future()
        done.set_result(None)
        return done


def _end(hashed: futures.Future[None], deadline: float) -> None:
    """Wait for the hash of a chunk.

    :raises ImageUnfit: the deadline has passed.
    """
    try:
        hashed.result(max(0.0, deadline - time.monotonic()))
    except futures.TimeoutError as error:
        raise ImageUnfit(errno.ETIMEDOUT, "image") from error


def _seal(memory: int, deadline: float) -> None:
    """Seal the memory against changes.

    EBUSY: after 150 ms a page still has extra references, which on a busy host
    come from the kernel itself, for a moment (memfd_wait_for_pins() in mm/memfd.c).
    """
    while True:
        try:
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() >= deadline:
                raise
        time.sleep(_PAUSE)


def _unreadable(error: OSError) -> ImageUnfit:
    return ImageUnfit(error.errno or errno.EIO, "image")
