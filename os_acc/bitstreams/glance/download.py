# SPDX-License-Identifier: Apache-2.0

"""Download of image data from Glance."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import requests
from keystoneauth1 import adapter

from os_acc import exception
from os_acc.bitstreams.glance import errors
from os_acc.bitstreams.glance.options import GROUP
from os_acc.bitstreams.source import DownloadInterrupted
from os_acc.objects.image import Image
from os_acc.rest.transport import DATA

_PIECE = 2**20
# Bounded: Python refuses to convert thousands of digits to an integer.
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)")
_LENGTH = re.compile(r"[0-9]{1,19}")


class Download:
    """A running download; see :class:`os_acc.bitstreams.source.ImageStream`.

    :ivar offset: the actual start of the data.
    """

    def __init__(self, response: requests.Response, image: Image, offset: int) -> None:
        self.offset = offset
        self._response = response
        self._about = f"the data of image {image.id}"

    def __iter__(self) -> Iterator[bytes]:
        """Yield the data in pieces of at most a mebibyte.

        :raises DownloadInterrupted: Glance sent less than it announced.
        :raises ServiceUnavailable: the connection was dropped or timed out, or
            the deadline has passed.
        """
        received = 0
        try:
            for piece in self._response.iter_content(_PIECE):
                received += len(piece)
                yield piece
        except OSError as error:
            message = f"{self._about} ended after {received} bytes: {error}"
            hint = "a retry resumes the download"
            if errors.is_cut_short(error):
                raise DownloadInterrupted(message, hint=hint) from error
            raise exception.ServiceUnavailable(
                message, service=exception.ServiceType.IMAGE, hint=hint
            ) from error
        promised = _length(self._response)
        if promised is not None and received < promised:
            raise DownloadInterrupted(
                f"{self._about} ended after {received} of {promised} bytes"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._response.close()


def begin(http: adapter.Adapter, image: Image, offset: int) -> Download:
    """Start a download, from the offset if Glance supports it.

    :raises ImageNotFound: the image has no data.
    """
    headers = {"Accept": DATA, "Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    response = http.get(
        f"/v2/images/{image.id}/file", headers=headers, stream=True, raise_exc=False
    )
    with contextlib.ExitStack() as unused:
        unused.callback(response.close)
        begins = _begins(response, image, offset)
        if begins is not None:
            unused.pop_all()
            return Download(response, image, begins)
    return begin(http, image, 0)


def _begins(response: requests.Response, image: Image, offset: int) -> int | None:
    """Return the offset of the response; None if it is unusable for a resume."""
    code = response.status_code
    if offset and code == 416:
        return None
    if offset and code == 206:
        return offset if _continues(response, image, offset) else None
    if code == 204:
        raise exception.ImageNotFound(
            f"image {image} has no data",
            hint="upload its data, or request another image",
        )
    if code == 403:
        raise exception.ImageNotFound(
            f"Glance denies access to the data of image {image}",
            hint=f"it is deactivated, or the user in [{GROUP.name}] lacks the role "
            "member",
        )
    if code == 404:
        raise exception.ImageNotFound(f"image {image} has been deleted")
    if code >= 400:
        errors.check(response)
    if code != 200 or _encoded(response):
        raise exception.ServiceUnavailable(
            f"cannot use the response for the data of image {image.id}: "
            f"HTTP {code}, "
            f"{response.headers.get('Content-Encoding', 'not')} encoded",
            hint="check the proxies between this host and Glance",
            service=exception.ServiceType.IMAGE,
        )
    return 0


def _continues(response: requests.Response, image: Image, offset: int) -> bool:
    """Return whether the response is the complete rest of the same file."""
    served = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if served is None or _encoded(response) or int(served[1]) != offset:
        return False
    total = image.size if served[3] == "*" else int(served[3])
    return total == image.size and (total is None or int(served[2]) == total - 1)


def _encoded(response: requests.Response) -> bool:
    return response.headers.get("Content-Encoding", "identity") != "identity"


def _length(response: requests.Response) -> int | None:
    length = response.headers.get("Content-Length", "")
    return int(length) if _LENGTH.fullmatch(length) else None
