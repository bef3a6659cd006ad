# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""What Glance says of an image, as a value of ours."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any

from os_acc.objects.image import Image

# Image service API v2, "Show image": what is no property of the image's own.
_FIELDS = frozenset(
    {
        "id", "name", "status", "visibility", "protected", "os_hidden",
        "checksum", "os_hash_algo", "os_hash_value", "owner", "size",
        "virtual_size", "disk_format", "container_format", "min_disk",
        "min_ram", "created_at", "updated_at", "tags", "file", "schema", "self",
        "direct_url", "locations", "stores",
    }
)  # fmt: skip


def image(answer: Mapping[str, Any]) -> Image:
    """Glance's answer as an image.

    :raises KeyError: the answer has no id: it is not Glance's.
    """
    size = answer.get("size")
    return Image(
        id=str(answer["id"]),
        name=_text(answer, "name"),
        status=_text(answer, "status"),
        visibility=_text(answer, "visibility"),
        hidden=answer.get("os_hidden") is True,
        owner=_text(answer, "owner"),
        size=size if isinstance(size, int) else None,
        disk_format=_text(answer, "disk_format"),
        container_format=_text(answer, "container_format"),
        hash_algo=_text(answer, "os_hash_algo"),
        hash_value=_text(answer, "os_hash_value").lower(),
        tags=frozenset(map(str, answer.get("tags") or ())),
        properties=types.MappingProxyType(
            {
                name: value
                for name, value in answer.items()
                if name not in _FIELDS and isinstance(value, str)
            }
        ),
    )


def _text(answer: Mapping[str, Any], name: str) -> str:
    value = answer.get(name)
    return value if isinstance(value, str) else ""
