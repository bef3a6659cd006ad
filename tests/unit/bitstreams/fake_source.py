# SPDX-License-Identifier: Apache-2.0

"""A source of images with faults that a test sets, and images for it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import threading
from collections.abc import Iterator, Mapping

from os_acc import exception
from os_acc.bitstreams.source import DownloadInterrupted, ImageStream, has
from os_acc.objects.bitstream import Image
from tests.unit.bitstreams import image_examples

PIECE = 1 << 20


def id_of(number: int) -> str:
    """Return the id of the image with this number."""
    return f"{number:08x}-2222-4222-8222-222222222222"


def image_of(content: bytes, number: int = 1, **changes: object) -> Image:
    """Return a valid image with this content."""
    fields = {
        "id": id_of(number),
        "name": f"loopback{number}",
        "owner": "",
        "size": len(content),
        "hash_value": hashlib.sha512(content).hexdigest(),
        "properties": {},
    }
    return image_examples.image(number, **fields | changes)


@dataclasses.dataclass
class Faults:
    """Faults of successive downloads; each occurs once.

    :ivar drops: bytes after which the connection is dropped.
    :ivar ends: bytes after which the source ends as if the image were complete.
    :ivar cuts: bytes after which the source ends, and reports that data are missing.
    :ivar refusals: how many times the source cannot be reached.
    """

    drops: list[int] = dataclasses.field(default_factory=list)
    ends: list[int] = dataclasses.field(default_factory=list)
    cuts: list[int] = dataclasses.field(default_factory=list)
    refusals: int = 0


class Place:
    """A source of images in memory.

    :param resumes: whether a download can begin at an offset.
    :param piece: bytes that it sends at a time.
    :ivar faults: the faults of the next downloads.
    :ivar begun: the offset at which each download has begun.
    :ivar gate: while it is not set, downloads stop after their first piece.
    :ivar waiting: set as soon as a download has stopped there.
    """

    def __init__(
        self, *contents: bytes, resumes: bool = True, piece: int = PIECE
    ) -> None:
        made = [image_of(each, n) for n, each in enumerate(contents, start=1)]
        self.all = {image.id: image for image in made}
        self.contents = dict(zip(self.all, contents, strict=True))
        self.resumes = resumes
        self.piece = piece
        self.faults = Faults()
        self.begun: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()

    @property
    def only(self) -> Image:
        """Return the only image."""
        (image,) = self.all.values()
        return image

    def image(self, image_id: str, deadline: float) -> Image:
        try:
            return self.all[image_id]
        except KeyError as error:
            raise exception.ImageNotFound(f"no image {image_id}") from error

    def images(self, filters: Mapping[str, str], deadline: float) -> Iterator[Image]:
        for image in self.all.values():
            if has(image, filters):
                yield image

    @contextlib.contextmanager
    def data(self, image: Image, offset: int, deadline: float) -> Iterator[ImageStream]:
        if self.faults.refusals:
            self.faults.refusals -= 1
            raise exception.ServiceUnavailable(
                "cannot reach Glance", service=exception.ServiceType.IMAGE
            )
        begin = offset if self.resumes else 0
        self.begun.append(begin)
        yield ImageStream(begin, self._pieces(self.contents[image.id], begin))

    def _pieces(self, content: bytes, offset: int) -> Iterator[bytes]:
        faults = self.faults
        dropped = faults.drops.pop(0) if faults.drops else None
        end = faults.ends.pop(0) if faults.ends else None
        cut = faults.cuts.pop(0) if faults.cuts else None
        limits = (dropped, end, cut, len(content))
        last = min(each for each in limits if each is not None)
        for start in range(offset, last, self.piece):
            yield content[start : min(start + self.piece, last)]
            if not self.gate.is_set():
                self.waiting.set()
                self.gate.wait()
        if dropped is not None:
            raise exception.ServiceUnavailable(
                "the connection was dropped", service=exception.ServiceType.IMAGE
            )
        if cut is not None:
            raise DownloadInterrupted("the answer was cut short")
