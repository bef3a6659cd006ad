# SPDX-License-Identifier: Apache-2.0

"""Glance as a source of images, and its options: those of keystoneauth1."""

from __future__ import annotations

import contextlib
import re
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from oslo_config import cfg

from os_acc import exception
from os_acc.bitstreams.source import ImageStream, has, parsed
from os_acc.objects.bitstream import Image
from os_acc.rest.client import ServiceClient, summary
from os_acc.rest.responses import JsonValue, ResponseMalformed
from os_acc.rest.service import Service

if TYPE_CHECKING:
    from os_acc.rest.session import ServiceAccess

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
_PAGE: Final = 200
# Images that one search reads.
_MOST: Final = 10_000
_MALFORMED: Final = (AttributeError, LookupError, TypeError, ValueError)


class Glance:
    """Glance as an image source; thread-safe.

    glanceclient and keystoneauth1 are imported at the first request.

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
        about, path = f"get image {image_id}", f"/v2/images/{image_id}"

        def get(access: ServiceAccess) -> Image:
            found = parsed(self._document(access, path, about, image_id))
            if found.id.lower() != image_id.lower():
                raise ResponseMalformed(f"'id' is {found.id}, the id of another image")
            return found

        return self._client.call(get, about, deadline)

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

        The data are not verified here, and glanceclient is not used: it can neither
        request data from an offset nor always return them in pieces.

        :raises ImageNotFound: it is gone, has no data, or is deactivated.
        :raises ServiceUnavailable: Keystone or Glance do not answer.
        :raises InvalidConfiguration: they deny access, or the endpoint is wrong.
        """
        from os_acc.bitstreams.glance import download

        with download.begin(self._client, image, offset, deadline) as begun:
            yield begun

    def _page(
        self, filters: Mapping[str, str], last: str, deadline: float
    ) -> tuple[list[Image], bool]:
        """Return the images of a page, and whether there are more.

        :param last: the ID of the last image of the page before; '' for the first.
        """
        asked = _in_glances_syntax(filters) | {"limit": str(_PAGE)}
        if last:
            asked["marker"] = last
        about, path = "list the images", f"/v2/images?{urllib.parse.urlencode(asked)}"

        def get(access: ServiceAccess) -> tuple[list[Image], bool]:
            body = self._document(access, path, about, marker=last)
            return [parsed(each) for each in body["images"]], "next" in body

        return self._client.call(get, about, deadline)

    def _document(
        self,
        access: ServiceAccess,
        path: str,
        about: str,
        image_id: str = "",
        marker: str = "",
    ) -> JsonValue:
        """Request a document.

        glanceclient's models follow a schema that the server sends, and fail in ways
        of their own: here every field is read with its expected type.

        :param image_id: the requested image, if there is one.
        :param marker: the image after which a page begins, if there is one.
        """
        from glanceclient import exc
        from glanceclient.common import http
        from keystoneauth1.exceptions import ConnectFailure

        from os_acc.rest import session

        try:
            _answer, body = access.adapter(http.SessionClient).get(path)
        except (exc.CommunicationError, exc.InvalidEndpoint) as error:
            raise ConnectFailure(str(error)) from error
        # glanceclient fails in several ways at the body of a rejection.
        except (exc.ClientException, *_MALFORMED) as error:
            status = session.thread.call.status or 0
            if status < 300:
                raise
            known = isinstance(error, exc.ClientException)
            detail = summary(error) if known else f"HTTP {status}"
            refused = _refused(status, detail, image_id, marker)
            raise self._client.rejection(status, detail, about, refused) from error
        return JsonValue(body)


def _refused(
    status: int, detail: str, image_id: str, marker: str
) -> exception.OsAccError | None:
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
