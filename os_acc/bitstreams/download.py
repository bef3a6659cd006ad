# SPDX-License-Identifier: Apache-2.0

"""Fetch the bytes of one image, and prove them while they arrive."""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import os
import time
from collections.abc import Callable

from oslo_log import log

from os_acc import exception
from os_acc.bitstreams.source import DownloadInterrupted, ImageSource, ImageStream
from os_acc.objects.digest import Digest
from os_acc.objects.image import Image

LOG = log.getLogger(__name__)

#: Told how many bytes are there, and of how many; None: nobody knows.
Progress = Callable[[int, int | None], None]

#: Seconds before the first retry; each further one without a byte in between
#: waits twice as long as the one before.
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 10.0
# How often in a row a source may end before the image does; and how often it may
# cut its answer short at the same byte, which one that is stopped does, too.
_SHORT_ENDS = 3
_SAME_CUTS = 4


def fetch(
    source: ImageSource,
    image: Image,
    fd: int,
    most: int,
    deadline: float,
    progress: Progress | None = None,
) -> int:
    """Write an image to a file, and prove that it is what its hash says.

    One piece of it is in memory at a time. A connection that is dropped is
    made anew until the deadline: from where it stopped where the source can
    begin there, else from the start. One that stops at the same byte, answer
    after answer, has no more of the image: that is not waited for.

    :param fd: of a file, at its start; it is not synced.
    :param most: bytes to write at most, where the image does not say its size.
    :param deadline: on the clock of :func:`time.monotonic`.
    :returns: its size in bytes.
    :raises ImageInvalid: its size or its hash is another one, or it has none.
    :raises ImageNotFound: it is gone.
    :raises ImageServiceUnavailable: it was not there at the deadline.
    :raises OSError: the file cannot be written.
    """
    arriving = _Arriving(image, Digest.of(image), fd, most, deadline, progress)
    short_ends = failures = 0
    cuts: collections.Counter[int] = collections.Counter()
    while True:
        before = arriving.done
        try:
            with source.data(image, arriving.done, deadline) as data:
                arriving.take(data)
        except exception.ImageServiceUnavailable as error:
            cuts[arriving.done] += isinstance(error, DownloadInterrupted)
            if cuts[arriving.done] == _SAME_CUTS:
                raise arriving.too_short() from error
            failures = 1 if arriving.done > before else failures + 1
            _pause(image, arriving, failures, error)
            continue
        if arriving.is_whole:
            arriving.prove()
            # What an attempt before has written may have been longer.
            os.ftruncate(fd, arriving.done)
            return arriving.done
        short_ends = 1 if arriving.done > before else short_ends + 1
        if short_ends == _SHORT_ENDS:
            raise arriving.too_short()


def _pause(
    image: Image,
    arriving: _Arriving,
    failures: int,
    error: exception.ImageServiceUnavailable,
) -> None:
    seconds = min(FIRST_PAUSE * 2.0 ** min(failures - 1, 10), LONGEST_PAUSE)
    if time.monotonic() + seconds >= arriving.deadline:
        raise arriving.late() from error
    LOG.info(
        "Image %s stopped after %d bytes of %s, goes on in %.1f s: %s",
        *(image, arriving.done, image.size, seconds, error.message),
    )
    time.sleep(seconds)


@dataclasses.dataclass(slots=True)
class _Arriving:
    """What has arrived of an image so far."""

    image: Image
    digest: Digest
    fd: int
    most: int
    deadline: float
    progress: Progress | None
    done: int = 0
    hashing: hashlib._Hash = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.hashing = self.digest.new()

    @property
    def is_whole(self) -> bool:
        return self.image.size is None or self.done == self.image.size

    def take(self, data: ImageStream) -> None:
        """Add what a source sends, until it ends."""
        if data.offset != self.done:
            self._restart()
        if data.offset != self.done:
            raise exception.ImageServiceUnavailable(
                f"image {self.image} was sent from byte {data.offset} on, which"
                " nobody asked for"
            )
        for piece in data:
            if time.monotonic() >= self.deadline:
                raise self.late()
            self._add(piece)

    def _restart(self) -> None:
        os.lseek(self.fd, 0, os.SEEK_SET)
        self.hashing = self.digest.new()
        self.done = 0

    def _add(self, piece: bytes) -> None:
        limit = self.most if self.image.size is None else self.image.size
        if self.done + len(piece) > limit:
            raise exception.ImageInvalid(
                f"image {self.image} has more than {limit} bytes"
            )
        self.hashing.update(piece)
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(self.fd, rest) :]
        self.done += len(piece)
        if self.progress:
            self.progress(self.done, self.image.size)

    def prove(self) -> None:
        """Hold the bytes against the hash of the image."""
        found = self.hashing.hexdigest()
        if found != self.digest.value:
            raise exception.ImageInvalid(
                f"image {self.image} has another hash than its bytes:"
                f" {self.digest} is said, {found} is true"
            )

    def too_short(self) -> exception.ImageInvalid:
        """The error for an image of which there is no more."""
        return exception.ImageInvalid(
            f"no more than {self.done} bytes of {self.image.size} can be had of image"
            f" {self.image}",
            hint="some of its data are lost where the images are: upload it anew",
        )

    def late(self) -> exception.ImageServiceUnavailable:
        """The error for an image that is not there at its deadline."""
        return exception.ImageServiceUnavailable(
            f"image {self.image} was not here in time: {self.done} bytes of"
            f" {self.image.size}",
            hint="see the Image service's log, or give [os_acc] plug_timeout more",
        )
