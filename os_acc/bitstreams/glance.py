# SPDX-License-Identifier: Apache-2.0

"""Glance as a source of images, and its options: those of keystoneauth1."""

from __future__ import annotations

import contextlib
import functools
import http.client
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from oslo_config import cfg

from os_acc import exception
from os_acc.bitstreams.source import DownloadInterrupted, ImageStream, has, parsed
from os_acc.objects.bitstream import Image
from os_acc.rest import responses
from os_acc.rest.client import Service, ServiceClient, summary
from os_acc.rest.responses import ResponseMalformed, document

if TYPE_CHECKING:
    from keystoneauth1.adapter import Adapter
    from requests import Response

GROUP: Final = cfg.OptGroup(
    "os_acc_glance",
    title="Glance, as a source of bitstreams",
    help="Endpoint and credentials of the Image service, for bitstreams of FPGAs. "
    "os_acc never uses a tenant's token: it sees the images that this user "
    "sees. auth_section can name another section with these credentials, such "
    "as [placement] or [service_user].",
)
SERVICE: Final = Service(
    name="Glance",
    group=GROUP,
    version="v2",
    spoken="version 2 is the only one",
    service_type=exception.ServiceType.IMAGE,
)

# Glance's IDs are UUIDs; any other text would form another URL.
_ID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_JSON: Final = {"Accept": "application/json"}
_PAGE: Final = 200
# Images that one search reads.
_MOST: Final = 10_000
_PIECE: Final = 2**20
# Bounded: Python refuses to convert thousands of digits to an integer.
_CONTENT_RANGE: Final = re.compile(
    r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)"
)
_LENGTH: Final = re.compile(r"[0-9]{1,19}")


class Glance:
    """Glance as an image source; thread-safe.

    Hidden images (``os_hidden``) are found only by ID.

    :param conf: the configuration, read at the first request.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._client = ServiceClient(conf, SERVICE)

    def image(self, image_id: str, deadline: float) -> Image:
        """See :meth:`os_acc.bitstreams.source.ImageSource.image`.

        :raises ImageNotFound: it does not exist, or is not visible.
        :raises ServiceUnavailable: Keystone or Glance do not answer.
        :raises InvalidConfiguration: they deny access, or the endpoint is wrong.
        """
        if not _ID.fullmatch(image_id):
            raise exception.ImageNotFound(
                f"{exception.show(image_id)} is not an image id",
                hint="an id in Glance is a UUID; request an image by its name "
                "with bitstream_name",
            )

        def take(answer: Response) -> Image:
            found = parsed(document(answer))
            if found.id.lower() != image_id.lower():
                raise ResponseMalformed(f"'id' is {found.id}, the id of another image")
            return found

        path, about = f"/v2/images/{image_id}", f"get image {image_id}"
        refused = functools.partial(_refused, image_id=image_id)
        return self._client.ask(
            "GET", path, take, about, deadline, refused, headers=_JSON
        )

    def images(self, filters: Mapping[str, str], deadline: float) -> Iterator[Image]:
        """See :meth:`os_acc.bitstreams.source.ImageSource.images`.

        :raises ServiceUnavailable: Keystone or Glance do not answer.
        :raises InvalidConfiguration: they deny access, or the endpoint is wrong.
        """
        last = ""
        listed, more = 0, True
        while more:
            page, more = self._page(filters, last, deadline)
            yield from (found for found in page if has(found, filters))
            # An empty page counts as one image, so that the loop ends.
            listed += max(1, len(page))
            if listed > _MOST:
                raise exception.ServiceUnavailable(
                    f"Glance lists more than {_MOST} images",
                    hint="set [os_acc_bitstreams] allow_public to false: images of "
                    "other projects are then not listed",
                    service=exception.ServiceType.IMAGE,
                )
            last = page[-1].id if page else last

    @contextlib.contextmanager
    def data(self, image: Image, offset: int, deadline: float) -> Iterator[ImageStream]:
        """See :meth:`os_acc.bitstreams.source.ImageSource.data`.

        :raises ImageNotFound: it is gone, has no data, or is deactivated.
        :raises ServiceUnavailable: Keystone or Glance do not answer.
        :raises InvalidConfiguration: they deny access, or the endpoint is wrong.
        """
        # Imported late: keystoneauth1 is slow to import, and rarely needed.
        from os_acc.rest.session import DATA

        client = self._client

        def request(at: int, adapter: Adapter) -> tuple[Response, int]:
            response: Response = adapter.get(
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
            return request(0, adapter)

        about = f"get the data of image {image.id}"
        begin = functools.partial(request, offset)
        response, begins = client.call(begin, about, deadline)
        with contextlib.ExitStack() as opened:
            opened.callback(response.close)
            pieces = _pieces(client, response, image, deadline, opened)
            yield ImageStream(begins, pieces)

    def _page(
        self, filters: Mapping[str, str], last: str, deadline: float
    ) -> tuple[list[Image], bool]:
        """Return the images of a page, and whether there are more.

        :param last: the ID of the last image of the page before; '' for the first.
        """
        asked = _in_glances_syntax(filters) | {"limit": str(_PAGE)}
        if last:
            asked["marker"] = last

        def take(answer: Response) -> tuple[list[Image], bool]:
            body = document(answer)
            return [parsed(each) for each in body["images"]], "next" in body

        path = f"/v2/images?{urllib.parse.urlencode(asked)}"
        refused = functools.partial(_refused, marker=last)
        return self._client.ask(
            "GET", path, take, "list the images", deadline, refused, headers=_JSON
        )


def _refused(
    answer: Response, image_id: str = "", marker: str = ""
) -> exception.OsAccError | None:
    """Return the error for a rejected request, of an image or of the page after one."""
    status, detail = answer.status_code, responses.refusal(answer)
    if status == 404 and marker:
        return exception.ServiceUnavailable(
            f"image {marker} was deleted while the images were listed",
            service=exception.ServiceType.IMAGE,
        )
    if status == 403:
        return exception.ImageNotFound(
            f"Glance denies access to image {image_id}: {detail}"
            if image_id
            else f"Glance denies access to the images: {detail}",
            hint=f"check the roles of the user in [{GROUP.name}]",
        )
    if status == 404 and image_id:
        return exception.ImageNotFound(
            f"Glance has no image {image_id}: {detail}",
            hint="it does not exist, or another project owns it, and it is neither "
            f"public nor shared with the project in [{GROUP.name}]",
        )
    return None


def _in_glances_syntax(filters: Mapping[str, str]) -> dict[str, str]:
    asked = dict(filters)
    if "owner" in asked:
        # Glance lists community images of others only with this filter.
        asked.setdefault("visibility", "all")
    name = filters.get("name", "")
    if ":" in name:
        # Glance parses the text before a colon as an operator, and has no escape for
        # a quote: for a name with both, all images are listed.
        del asked["name"]
        if not set(name) & set('"\\'):
            asked["name"] = f'in:"{name}"'
    return asked


# -- the data of an image ----------------------------------------------------------


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
    import urllib3.exceptions

    from os_acc.rest.session import is_caused_by

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
        reasons = {
            403: exception.ImageNotFound(
                f"Glance denies access to the data of image {image}",
                hint="it is deactivated, or the user in "
                f"[{GROUP.name}] lacks the role member",
            ),
            404: exception.ImageNotFound(f"image {image} has been deleted"),
        }
        about = f"get the data of image {image.id}"
        raise client.rejection(response, about, reasons.get(code))
    if code != 200 or _is_encoded(response):
        encoding = response.headers.get("Content-Encoding", "not")
        raise exception.ServiceUnavailable(
            f"cannot use the response for the data of image {image.id}: "
            f"HTTP {code}, {encoding} encoded",
            hint="check the proxies between this host and Glance",
            service=exception.ServiceType.IMAGE,
        )
    return 0


def _continues(response: Response, image: Image, offset: int) -> bool:
    """Return whether the response is the complete rest of the same file."""
    served = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    if served is None or _is_encoded(response) or int(served[1]) != offset:
        return False
    total = image.size if served[3] == "*" else int(served[3])
    return total == image.size and (total is None or int(served[2]) == total - 1)


def _is_encoded(response: Response) -> bool:
    return response.headers.get("Content-Encoding", "identity") != "identity"
