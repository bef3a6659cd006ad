# SPDX-License-Identifier: Apache-2.0

"""Glance as a source of images."""

from __future__ import annotations

import contextlib
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

from oslo_config import cfg

from os_acc import exception
from os_acc.bitstreams.glance.options import GROUP
from os_acc.bitstreams.source import has
from os_acc.objects.image import Image
from os_acc.rest.responses import JsonValue, ResponseMalformed

if TYPE_CHECKING:
    from os_acc.bitstreams.glance.download import Download
    from os_acc.bitstreams.glance.session import GlanceSession

_T = TypeVar("_T")

# Glance's IDs are UUIDs; any other text would form another URL.
_ID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PAGE = 200
# Images that one search reads.
_MOST = 10_000


class Glance:
    """Glance as an image source; thread-safe.

    Threads share the token, too. glanceclient and keystoneauth1 are imported at
    the first request.

    Hidden images (``os_hidden``) are found only by ID.

    :param conf: the configuration, read at the first request.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._lock = threading.Lock()
        self._made: GlanceSession | None = None

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
        return self._asked(
            lambda link: _image(link, image_id), f"image {image_id}", deadline
        )

    def images(self, filters: Mapping[str, str], deadline: float) -> Iterator[Image]:
        """See :meth:`os_acc.bitstreams.source.ImageSource.images`.

        :raises ServiceUnavailable: Keystone or Glance do not answer.
        :raises InvalidConfiguration: they deny access, or the endpoint is wrong.
        """
        last: str | None = None
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

    def _page(
        self, filters: Mapping[str, str], last: str | None, deadline: float
    ) -> tuple[list[Image], bool]:
        return self._asked(
            lambda link: _page(link, filters, last), "the list of images", deadline
        )

    @contextlib.contextmanager
    def data(self, image: Image, offset: int, deadline: float) -> Iterator[Download]:
        """See :meth:`os_acc.bitstreams.source.ImageSource.data`.

        The data are not verified here, and glanceclient is not used.

        :raises ImageNotFound: it is gone, has no data, or is deactivated.
        :raises ServiceUnavailable: Keystone or Glance do not answer.
        :raises InvalidConfiguration: they deny access, or the endpoint is wrong.
        """
        from os_acc.bitstreams.glance import download

        with self._asked(
            lambda link: download.begin(link.http, image, offset),
            f"the data of image {image.id}",
            deadline,
        ) as begun:
            yield begun

    def _asked(
        self, ask: Callable[[GlanceSession], _T], about: str, deadline: float
    ) -> _T:
        from os_acc.bitstreams.glance import errors
        from os_acc.rest import retries

        link = self._link()
        return retries.ask(
            lambda: ask(link), link.retries, errors.FAILURES, about, deadline
        )

    def _link(self) -> GlanceSession:
        from os_acc.bitstreams.glance.session import link as connect

        with self._lock:
            if self._made is None:
                self._made = connect(self._conf)
            return self._made


def _image(link: GlanceSession, image_id: str) -> Image:
    from os_acc.bitstreams.glance import image_parser

    found = image_parser.image(_asked_of(link, f"/v2/images/{image_id}"))
    if found.id.lower() != image_id.lower():
        raise ResponseMalformed(f"'id' is {found.id}, the id of another image")
    return found


def _page(
    link: GlanceSession, filters: Mapping[str, str], last: str | None
) -> tuple[list[Image], bool]:
    """Return the images of a page, and whether there are more."""
    from glanceclient import exc

    from os_acc.bitstreams.glance import image_parser

    asked = _asked_for(filters) | {"limit": str(_PAGE)}
    if last is not None:
        asked["marker"] = last
    try:
        answer = _asked_of(link, f"/v2/images?{urllib.parse.urlencode(asked)}")
    except exc.HTTPNotFound as error:
        if last is None:
            raise exception.InvalidConfiguration(
                "cannot list the images: the endpoint is not Glance's",
                hint=f"check endpoint_override in [{GROUP.name}]",
            ) from error
        raise exception.ServiceUnavailable(
            f"image {last} was deleted while the images were listed",
            service=exception.ServiceType.IMAGE,
        ) from error
    return image_parser.page(answer)


def _asked_of(link: GlanceSession, path: str) -> JsonValue:
    """Request a document.

    glanceclient's models follow a schema that the server sends, and fail in ways
    of their own: here every field is read with its expected type.
    """
    _answer, body = link.client.get(path)
    return JsonValue(body)


def _asked_for(filters: Mapping[str, str]) -> dict[str, str]:
    """Return the filters in Glance's syntax."""
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
