# SPDX-License-Identifier: Apache-2.0

"""Parser of Glance's images."""

from __future__ import annotations

import types

from os_acc.objects.image import Image
from os_acc.rest.responses import JsonValue

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


def image(answer: JsonValue) -> Image:
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


def page(answer: JsonValue) -> tuple[list[Image], bool]:
    """Return the images of a page, and whether there are more."""
    return [image(each) for each in answer["images"]], "next" in answer


def _text(answer: JsonValue, name: str) -> str:
    value = _optional(answer, name)
    return "" if value is None else value.text()


def _optional(answer: JsonValue, name: str) -> JsonValue | None:
    return answer[name].optional() if name in answer else None
