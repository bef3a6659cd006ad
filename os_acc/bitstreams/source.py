# SPDX-License-Identifier: Apache-2.0

"""Where images come from: one small interface, several places."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from os_acc import exception
from os_acc.objects.image import Image


class DownloadInterrupted(exception.ImageServiceUnavailable):
    """An answer ended in order, and before the end that it had told of.

    So does one of a server that is stopped; and each one, at the same byte, of
    a store that has no more of the file.
    """


class ImageSource(Protocol):
    """A place that has images.

    Every deadline is one of ``time.monotonic()``. Whatever a source says of
    an image is the source's word: nothing of it is proved here.
    """

    def image(self, image_id: str, deadline: float) -> Image:
        """One image by its id.

        :raises ImageNotFound: there is none, or none that we may see.
        :raises ImageServiceUnavailable: the source does not answer in time.
        """

    def images(self, filters: Mapping[str, str], deadline: float) -> Iterator[Image]:
        """Every image that has all of these, whatever its status.

        :param filters: ``name``, ``tag``, ``owner``, ``visibility``, or the
            name of a property, and the exact value that it has to have.
        :raises ImageServiceUnavailable: the source does not answer in time.
        """

    def data(
        self, image: Image, offset: int, deadline: float
    ) -> AbstractContextManager[ImageStream]:
        """The file of an image, from an offset on where the source can.

        :raises ImageNotFound: it is gone, or has no data.
        :raises ImageServiceUnavailable: the source does not answer; also
            while it is read, when the connection is dropped.
        """


def has(image: Image, filters: Mapping[str, str]) -> bool:
    """Whether an image has exactly what was asked for.

    Glance compares as its database does: MySQL's takes A for a.
    """
    return all(_value(image, name, value) == value for name, value in filters.items())


def _value(image: Image, name: str, wanted: str) -> str | None:
    if name == "tag":
        return wanted if wanted in image.tags else None
    fields = {
        "name": image.name,
        "owner": image.owner,
        "visibility": image.visibility,
    }
    return fields[name] if name in fields else image.properties.get(name)


class ImageStream(Protocol):
    """A file on its way here.

    :ivar offset: where it really begins: 0 where the source cannot begin
        elsewhere.
    """

    offset: int

    def __iter__(self) -> Iterator[bytes]:
        """The file in pieces of at most a mebibyte.

        :raises CutShort: there is less than was told of.
        :raises ImageServiceUnavailable: the connection was dropped.
        """
