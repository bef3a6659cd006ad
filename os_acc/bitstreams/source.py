# SPDX-License-Identifier: Apache-2.0

"""The interface of image sources, and the parser of their images."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Final, Protocol

from oslo_log import log

from os_acc import exception
from os_acc.objects.bitstream import Image
from os_acc.rest.responses import JsonValue

LOG = log.getLogger(__name__)

#: Image service API v2, "Show image": the fields that are no custom properties.
FIELDS: Final = frozenset(
    {
        "id", "name", "status", "visibility", "protected", "os_hidden",
        "checksum", "os_hash_algo", "os_hash_value", "owner", "size",
        "virtual_size", "disk_format", "container_format", "min_disk",
        "min_ram", "created_at", "updated_at", "tags", "file", "schema", "self",
        "direct_url", "locations", "stores",
    }
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class ImageStream:
    """The data of an image during a download.

    :ivar offset: the actual start; 0 if the source does not support offsets.
    :ivar pieces: the data, in pieces of at most a mebibyte. It raises
        DownloadInterrupted if they end before the announced length, and
        ServiceUnavailable if the connection is dropped, or at the deadline.
    """

    offset: int
    pieces: Iterator[bytes]

    def __iter__(self) -> Iterator[bytes]:
        return self.pieces


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
    fields = {"name": image.name, "owner": image.owner, "visibility": image.visibility}
    stated = {**image.properties, **fields}
    return all(
        value in image.tags if name == "tag" else stated.get(name) == value
        for name, value in filters.items()
    )


def parsed(found: JsonValue) -> Image:
    """Parse an image with Glance's names; properties that are no strings are left out.

    :raises ResponseMalformed: it has no ID, or a field has an unexpected type.
    """

    def field(name: str) -> JsonValue | None:
        return found[name].optional() if name in found else None

    def text(name: str) -> str:
        value = field(name)
        return "" if value is None else value.text()

    size, hidden, tags = field("size"), field("os_hidden"), field("tags")
    return Image(
        id=found["id"].uuid(),
        name=text("name"),
        status=text("status"),
        visibility=text("visibility"),
        hidden=hidden is not None and hidden.boolean(),
        owner=text("owner"),
        size=None if size is None else size.integer(),
        disk_format=text("disk_format"),
        container_format=text("container_format"),
        hash_algo=text("os_hash_algo"),
        hash_value=text("os_hash_value").lower(),
        tags=frozenset(each.text() for each in tags or ()),
        properties=types.MappingProxyType(
            {
                name: value.text()
                for name, value in found.items()
                if name not in FIELDS and isinstance(value.found, str)
            }
        ),
    )
