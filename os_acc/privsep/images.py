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
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Annotated, Any

from os_acc import deadlines, exception
from os_acc.bitstreams import options
from os_acc.bitstreams.options import DIRECTORY
from os_acc.objects.bitstream import Digest
from os_acc.objects.pci import PciAddress
from os_acc.privsep import privileged_conf, request, worker
from os_acc.privsep.outcome import CallResult, unfit
from os_acc.privsep.privileged_conf import RootConf

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


def _signature(value: Any) -> tuple[str, ...]:
    request.require(isinstance(value, tuple | list) and len(value) == 4)
    # A subclass of str may be written differently than it is matched.
    request.require(all(type(t) is str and len(t) <= _LONGEST for t in value))
    return tuple(value)


@dataclasses.dataclass(frozen=True, slots=True)
class ImageRequest(request.Request):
    """A cached image, and the card that is programmed with it.

    :ivar card: the function that programs.
    :ivar number: of the port on the card, or of the user function in its slot.
    :ivar interface_id: of the interface that the card must have.
    :ivar digest: of the entire image, by which it is found.
    :ivar offset, size: range of the image to send to the hardware; XRT's tools get the
        entire image.
    :ivar signature: see :func:`.signatures.check`.
    """

    card: request.Address
    identity: request.Identity
    number: Annotated[int, request.number(7)]
    interface_id: request.Uuid
    digest: request.ImageDigest
    offset: Annotated[int, request.number(SIZE_LIMIT)]
    size: Annotated[int, request.number(SIZE_LIMIT, least=1)]
    epoch: request.Epoch
    milliseconds: request.Milliseconds
    signature: Annotated[tuple[str, ...], _signature]


def program(
    call: ImageRequest,
    root: RootConf,
    job: Callable[[Sealed], CallResult],
    beside: Sequence[PciAddress],
) -> CallResult:
    """Verify the image of a call, and program it in a worker's child.

    :param root: the configuration that permits the call. The file may change while the
        image is read, and another one may require no signature.
    :param beside: functions that are locked with the card.
    :raises CallRefused: the image is not the expected one, or unsigned; the step is
        ``image``, ``digest`` or ``signature``.
    """
    deadline = time.monotonic() + call.milliseconds / 1000
    with sealed(call.digest, deadline) as image:
        if call.offset + call.size > image.size:
            raise unfit(errno.ERANGE, observed=str(image.size))
        if root.certificates is not None:
            # Only the programming context preloads it: cryptography imports slowly.
            from os_acc.privsep import signatures

            signatures.check(image.fd, call.signature, root.certificates, deadline)
        seconds = deadline - time.monotonic()
        if seconds <= 0:
            # Nothing has begun: reading the image took all of the time.
            raise unfit(errno.ETIMEDOUT)
        card = [call.card], call.epoch, seconds, lambda _index: job(image)
        return worker.run(*card, [image.fd], beside=beside)[0]


def directory() -> str:
    """Return the directory of the cached images.

    :raises CallRefused: the configuration lacks an absolute ``state_path``.
    """
    option, group = options.STATE_PATH, options.STATE_GROUP
    configured = privileged_conf.current().state_path
    found = privileged_conf.absolute_path(configured, option, group, "image")
    return os.path.join(found, DIRECTORY)


@contextlib.contextmanager
def sealed(digest: Digest, deadline: float) -> Iterator[Sealed]:
    """Read, verify and seal the image of this digest.

    :param deadline: on the clock of ``time.monotonic()``.
    :raises CallRefused: the image is missing, too large, not read in time, or does
        not match its digest.
    """
    with contextlib.ExitStack() as opened:
        try:
            memory = os.memfd_create("image", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            opened.callback(os.close, memory)
            fd = _open(directory(), digest.file_name)
            try:
                size = _copy(fd, memory, digest, deadline)
            finally:
                os.close(fd)
            _seal(memory, deadline)
        except OSError as error:
            raise unfit(error.errno or errno.EIO) from error
        yield Sealed(memory, size)


def _open(place: str, name: str) -> int:
    directory_fd = os.open(place, _DIRECTORY)
    try:
        fd = os.open(name, _FILE, dir_fd=directory_fd)
    finally:
        os.close(directory_fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise unfit(errno.EINVAL, observed="not a file")
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
            raise unfit(errno.EFBIG, observed=str(SIZE_LIMIT))
        if time.monotonic() >= deadline:
            raise unfit(errno.ETIMEDOUT)
        # At most two chunks are in memory, however slow the hash is.
        _end(hashed, deadline)
        hashed = _begin(found.update, data)
        left = memoryview(data)
        while left:
            left = left[os.write(memory, left) :]
    _end(hashed, deadline)
    if found.hexdigest() != digest.value:
        raise unfit(errno.EBADMSG, "digest", found.hexdigest())
    return size


def _begin(update: Callable[[bytes], None], data: bytes) -> futures.Future[None]:
    """Hash a chunk in a thread, or here if no thread is available."""
    try:
        return deadlines.begin(update, data)
    except exception.DeviceStuck:
        update(data)
        done: futures.Future[None] = futures.Future()
        done.set_result(None)
        return done


def _end(hashed: futures.Future[None], deadline: float) -> None:
    try:
        hashed.result(max(0.0, deadline - time.monotonic()))
    except futures.TimeoutError as error:
        raise unfit(errno.ETIMEDOUT) from error


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
