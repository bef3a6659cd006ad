# SPDX-License-Identifier: Apache-2.0

"""Glance as a source of images."""

from __future__ import annotations

import contextlib
import re
import types
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from oslo_config import cfg

from os_acc import exception
from os_acc.bitstreams.glance.options import GROUP, SERVICE
from os_acc.bitstreams.source import has
from os_acc.objects.image import Image
from os_acc.rest.client import ServiceClient
from os_acc.rest.responses import JsonValue, ResponseMalformed, document, refusal

if TYPE_CHECKING:
    from requests import Response

    from os_acc.bitstreams.glance.download import Download

# Glance's IDs are UUIDs; any other text would form another URL.
_ID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_PAGE = 200
# Images that one search reads.
_MOST = 10_000
_LIST = "the list of images"
# Image service API v2, "Show image": the fields that are no custom properties.
_FIELDS = frozenset(
    {
        "id", "name", "status", "visibility", "protected", "os_hidden",
        "checksum", "os_hash_algo", "os_hash_value", "owner", "size",
        "virtual_size", "disk_format", "container_format", "min_disk",
        "min_ram", "created_at", "updated_at", "tags", "file", "schema", "self",
        "direct_url", "locations", "stores",
    }
)  # fmt: skip


class Glance:
    """Glance as an image source; thread-safe.

    Threads share the token, too. keystoneauth1 is imported at the first request.

    Hidden images (``os_hidden``) are found only by ID.

    :param conf: the configuration, read at the first request.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._link = ServiceClient(conf, SERVICE)

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

        def parsed(answer: Response) -> Image:
            found = _image(document(answer))
            if found.id.lower() != image_id.lower():
                raise ResponseMalformed(f"'id' is {found.id}, the id of another image")
            return found

        about = f"image {image_id}"
        return self._link.ask(
            "GET",
            f"/v2/images/{image_id}",
            parsed,
            f"get {about}",
            deadline,
            lambda answer: _refused(answer, about),
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
        """Return the images of a page, and whether there are more."""
        asked = _asked_for(filters) | {"limit": str(_PAGE)}
        if last is not None:
            asked["marker"] = last

        def refused(answer: Response) -> exception.OsAccError | None:
            if answer.status_code != 404:
                return _refused(answer, _LIST)
            if last is None:
                # It is not Glance's endpoint.
                return None
            return exception.ServiceUnavailable(
                f"image {last} was deleted while the images were listed",
                service=exception.ServiceType.IMAGE,
            )

        return self._link.ask(
            "GET",
            f"/v2/images?{urllib.parse.urlencode(asked)}",
            lambda answer: _images(document(answer)),
            f"get {_LIST}",
            deadline,
            refused,
        )

    @contextlib.contextmanager
    def data(self, image: Image, offset: int, deadline: float) -> Iterator[Download]:
        """See :meth:`os_acc.bitstreams.source.ImageSource.data`.

        The data are not verified here.

        :raises ImageNotFound: it is gone, has no data, or is deactivated.
        :raises ServiceUnavailable: Keystone or Glance do not answer.
        :raises InvalidConfiguration: they deny access, or the endpoint is wrong.
        """
        from os_acc.bitstreams.glance import download

        try:
            begun = self._begun(image, offset, deadline)
        except download.ResumeRefused:
            begun = self._begun(image, 0, deadline)
        with begun:
            yield begun

    def _begun(self, image: Image, offset: int, deadline: float) -> Download:
        from os_acc.bitstreams.glance import download

        return self._link.ask(
            "GET",
            f"/v2/images/{image.id}/file",
            lambda answer: download.begun(answer, image, offset),
            f"get the data of image {image.id}",
            deadline,
            lambda answer: download.refused(answer, image, offset),
            headers=download.headers(offset),
            stream=True,
        )


def _refused(answer: Response, about: str) -> exception.OsAccError | None:
    """Return the error for a rejected request; None: the endpoint is not Glance's."""
    if answer.status_code == 403:
        return exception.ImageNotFound(
            f"Glance denies access to {about}: {refusal(answer)}",
            hint=f"check the roles of the user in [{GROUP.name}]",
        )
    if answer.status_code == 404:
        return exception.ImageNotFound(
            f"Glance has no {about}: {refusal(answer)}",
            hint="it does not exist, or another project owns it, and it is "
            "neither public nor shared with the project in "
            "[os_acc_glance]",
        )
    return None


def _images(answer: JsonValue) -> tuple[list[Image], bool]:
    """Return the images of a page, and whether there are more."""
    return [_image(each) for each in answer["images"]], "next" in answer


def _image(answer: JsonValue) -> Image:
    """Parse an image.

    Properties are strings; those of other types are left out.

    :raises ResponseMalformed: it has no ID, or a field has an unexpected type.
    """
    image_id = answer["id"]
    size = _optional(answer, "size")
    hidden = _optional(answer, "os_hidden")
    tags = _optional(answer, "tags")
    return Image(
        id=image_id.uuid(),
        name=_text(answer, "name"),
        status=_text(answer, "status"),
        visibility=_text(answer, "visibility"),
        hidden=hidden is not None and hidden.boolean(),
        owner=_text(answer, "owner"),
        size=None if size is None else size.integer(),
        disk_format=_text(answer, "disk_format"),
        container_format=_text(answer, "container_format"),
        hash_algo=_text(answer, "os_hash_algo"),
        hash_value=_text(answer, "os_hash_value").lower(),
        tags=frozenset() if tags is None else frozenset(each.text() for each in tags),
        properties=types.MappingProxyType(
            {
                name: value.text()
                for name, value in answer.items()
                if name not in _FIELDS and isinstance(value.found, str)
            }
        ),
    )


def _text(answer: JsonValue, name: str) -> str:
    value = _optional(answer, name)
    return "" if value is None else value.text()


def _optional(answer: JsonValue, name: str) -> JsonValue | None:
    return answer[name].optional() if name in answer else None


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
