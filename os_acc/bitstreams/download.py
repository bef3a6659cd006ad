# SPDX-License-Identifier: Apache-2.0

"""The download of an image, which is verified as it arrives."""

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
from os_acc.objects.bitstream import Digest, Image

LOG = log.getLogger(__name__)

#: Called with the received and the total bytes; the total may be None.
Progress = Callable[[int, int | None], None]

#: Seconds before the first retry; the pause doubles with each further retry that
#: received no data in between.
FIRST_PAUSE = 0.2
LONGEST_PAUSE = 10.0
# After so many responses that end at the same byte, the image counts as truncated. One
# is not enough: a server that is being stopped interrupts a response as well.
_SAME_CUTS = 4


def download(
    source: ImageSource,
    image: Image,
    fd: int,
    most: int,
    deadline: float,
    progress: Progress | None = None,
) -> int:
    """Write an image to a file, and verify its hash.

    Only one piece is in memory at a time. A dropped connection is retried until the
    deadline: from its last byte if the source supports it, else from the start. If
    response after response ends at the same byte, the source has no more of the
    image, and there is no further retry.

    :param fd: of a file, at its start; it is not synced.
    :param most: the limit in bytes for an image of unknown size.
    :param deadline: on the clock of :func:`time.monotonic`.
    :returns: the size in bytes.
    :raises ImageUnusable: its size or hash differs, or it has no hash.
    :raises ImageNotFound: it is gone.
    :raises ServiceUnavailable: the download did not end in time.
    :raises OSError: the file cannot be written.
    """
    arriving = _Arriving(image, Digest.of(image), fd, most, deadline, progress)
    failures = 0
    cuts: collections.Counter[int] = collections.Counter()
    while True:
        before = arriving.done
        try:
            with source.data(image, arriving.done, deadline) as data:
                arriving.take(data)
        except exception.ServiceUnavailable as error:
            cuts[arriving.done] += isinstance(error, DownloadInterrupted)
            if cuts[arriving.done] == _SAME_CUTS:
                raise exception.ImageUnusable(
                    f"image {image} is truncated: the source sends "
                    f"{arriving.done} of {image.size} bytes",
                    hint="upload it again: the source has lost part of its data",
                ) from error
            failures = 1 if arriving.done > before else failures + 1
            seconds = min(FIRST_PAUSE * 2.0 ** min(failures - 1, 10), LONGEST_PAUSE)
            if time.monotonic() + seconds >= deadline:
                raise arriving.late() from error
            LOG.info(
                "image %s: download stopped after %d bytes of %s, will resume in "
                "%.1f s: %s",
                *(image, arriving.done, image.size, seconds, error.message),
            )
            time.sleep(seconds)
            continue
        arriving.prove()
        # An earlier attempt may have written more.
        os.ftruncate(fd, arriving.done)
        return arriving.done


@dataclasses.dataclass(slots=True)
class _Arriving:
    """The state of a download."""

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

    def take(self, data: ImageStream) -> None:
        """Write the data of a source until they end.

        :raises DownloadInterrupted: they end before the size of the image.
        """
        if data.offset != self.done:
            # The source does not support offsets: start again.
            os.lseek(self.fd, 0, os.SEEK_SET)
            self.hashing, self.done = self.digest.new(), 0
        if data.offset != self.done:
            raise exception.ServiceUnavailable(
                f"image {self.image} was sent from byte {data.offset} on, not "
                f"from the requested byte {self.done} on",
                service=exception.ServiceType.IMAGE,
            )
        for piece in data:
            if time.monotonic() >= self.deadline:
                raise self.late()
            self._add(piece)
        if self.image.size not in (None, self.done):
            raise DownloadInterrupted(
                f"the data of image {self.image} ended after {self.done} of"
                f" {self.image.size} bytes"
            )

    def _add(self, piece: bytes) -> None:
        limit = self.most if self.image.size is None else self.image.size
        if self.done + len(piece) > limit:
            raise exception.ImageUnusable(
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
        """Verify the hash of the image."""
        found = self.hashing.hexdigest()
        if found != self.digest.value:
            raise exception.ImageUnusable(
                f"the data of image {self.image} do not match its hash: "
                f"expected {self.digest}, computed {found}"
            )

    def late(self) -> exception.ServiceUnavailable:
        """Return the error for a download that did not end in time."""
        return exception.ServiceUnavailable(
            f"image {self.image} was not downloaded in time: {self.done} "
            f"of {self.image.size} bytes",
            hint="see the log of the Image service, or raise [os_acc] plug_timeout",
            service=exception.ServiceType.IMAGE,
        )
