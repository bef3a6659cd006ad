# SPDX-License-Identifier: Apache-2.0

"""Download of image data from Glance."""

from __future__ import annotations

import contextlib
import functools
import http.client
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import urllib3.exceptions

from os_acc import exception
from os_acc.bitstreams.source import DownloadInterrupted, ImageStream
from os_acc.objects.bitstream import Image
from os_acc.rest import responses
from os_acc.rest.client import ServiceClient, summary
from os_acc.rest.session import DATA, ServiceAccess, is_caused_by

if TYPE_CHECKING:
    from requests import Response

_PIECE = 2**20
# Bounded: Python refuses to convert thousands of digits to an integer.
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)")
_LENGTH = re.compile(r"[0-9]{1,19}")


@contextlib.contextmanager
def begin(
    client: ServiceClient, image: Image, offset: int, deadline: float
) -> Iterator[ImageStream]:
    """Start a download, from the offset if Glance supports it.

    :raises ImageNotFound: the image has no data.
    """

    def request(access: ServiceAccess, at: int) -> tuple[Response, int]:
        response: Response = access.adapter().get(
            f"/v2/images/{image.id}/file",
            headers={"Accept": DATA} | ({"Range": f"bytes={at}-"} if at else {}),
            stream=True,
            raise_exc=False,
        )
        with contextlib.ExitStack() as unused:
            unused.callback(response.close)
            begins = _begins(client, response, image, at)
            if begins is not None:
                unused.pop_all()
                return response, begins
        return request(access, 0)

    response, begins = client.call(
        lambda access: request(access, offset),
        f"get the data of image {image.id}",
        deadline,
    )
    with contextlib.ExitStack() as opened:
        opened.callback(response.close)
        yield ImageStream(begins, _pieces(client, response, image, deadline, opened))


def _pieces(
    client: ServiceClient,
    response: Response,
    image: Image,
    deadline: float,
    opened: contextlib.ExitStack,
) -> Iterator[bytes]:
    """Yield the data in pieces of at most a mebibyte.

    :param opened: closes the response.
    """
    received, what = 0, f"the data of image {image.id}"
    length = response.headers.get("Content-Length", "")
    promised = int(length) if _LENGTH.fullmatch(length) else 0
    # The data of an image are never decoded.
    read = functools.partial(response.raw.read, _PIECE, decode_content=False)
    try:
        while piece := client.detached(f"get {what}", deadline, read):
            received += len(piece)
            yield piece
    except (OSError, urllib3.exceptions.HTTPError) as error:
        if isinstance(error, TimeoutError):
            # close() would wait for the abandoned read.
            opened.pop_all()
        message = f"{what} ended after {received} bytes: {summary(error)}"
        hint = "a retry resumes the download"
        if is_caused_by(error, http.client.IncompleteRead):
            raise DownloadInterrupted(message, hint=hint) from error
        raise exception.ServiceUnavailable(
            message, service=exception.ServiceType.IMAGE, hint=hint
        ) from error
    if received < promised:
        raise DownloadInterrupted(f"{what} ended after {received} of {promised} bytes")


def _begins(
    client: ServiceClient, response: Response, image: Image, offset: int
) -> int | None:
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
    if code >= 400:
        raise client.rejection(
            code,
            responses.refusal(response),
            f"get the data of image {image.id}",
            _refused(code, image, client.service.group.name),
        )
    if code != 200 or _is_encoded(response):
        raise exception.ServiceUnavailable(
            f"cannot use the response for the data of image {image.id}: "
            f"HTTP {code}, "
            f"{response.headers.get('Content-Encoding', 'not')} encoded",
            hint="check the proxies between this host and Glance",
            service=exception.ServiceType.IMAGE,
        )
    return 0


def _refused(code: int, image: Image, group: str) -> exception.ImageNotFound | None:
    if code == 403:
        return exception.ImageNotFound(
            f"Glance denies access to the data of image {image}",
            hint=f"it is deactivated, or the user in [{group}] lacks the role member",
        )
    if code == 404:
        return exception.ImageNotFound(f"image {image} has been deleted")
    return None


def _continues(response: Response, image: Image, offset: int) -> bool:
    """Return whether the response is the complete rest of the same file."""
    served = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if served is None or _is_encoded(response) or int(served[1]) != offset:
        return False
    total = image.size if served[3] == "*" else int(served[3])
    return total == image.size and (total is None or int(served[2]) == total - 1)


def _is_encoded(response: Response) -> bool:
    return response.headers.get("Content-Encoding", "identity") != "identity"
