# SPDX-License-Identifier: Apache-2.0

"""The interface of image sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from os_acc import exception
from os_acc.objects.image import Image


class DownloadInterrupted(exception.ServiceUnavailable):
    """A response ended before its announced length.

    A server that is stopped causes one; a store that has lost part of the file
    causes one at the same byte each time.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, service=exception.ServiceType.IMAGE, hint=hint)


class ImageSource(Protocol):
    """A source of images.

    Deadlines are on the clock of :func:`time.monotonic`. The data of a source are
    not verified here.
    """

    def image(self, image_id: str, deadline: float) -> Image:
        """Return an image by ID.

        :raises ImageNotFound: it does not exist, or is not visible.
        :raises ServiceUnavailable: the source does not answer in time.
        """

    def images(self, filters: Mapping[str, str], deadline: float) -> Iterator[Image]:
        """Yield all images that match every filter, in any status.

        :param filters: ``name``, ``tag``, ``owner``, ``visibility``, or the name of a
            property, with the exact value.
        :raises ServiceUnavailable: the source does not answer in time.
        """

    def data(
        self, image: Image, offset: int, deadline: float
    ) -> AbstractContextManager[ImageStream]:
        """Stream the data of an image, from the offset if the source supports it.

        :raises ImageNotFound: it is gone, or has no data.
        :raises ServiceUnavailable: the source does not answer; also raised
            while the data are read, if the connection is dropped.
        """


def has(image: Image, filters: Mapping[str, str]) -> bool:
    """Return whether an image matches the filters exactly.

    Glance compares as its database does: MySQL ignores case.
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
    """The data of an image during a download.

    :ivar offset: the actual start; 0 if the source does not support offsets.
    """

    offset: int

    def __iter__(self) -> Iterator[bytes]:
        """Yield the data in pieces of at most a mebibyte.

        :raises DownloadInterrupted: the data ended before the announced length.
        :raises ServiceUnavailable: the connection was dropped.
        """
