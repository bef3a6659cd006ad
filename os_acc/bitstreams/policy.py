# SPDX-License-Identifier: Apache-2.0

"""The operator's policy on images that may be programmed.

Facts that only the uploader controls (name, properties, format) never allow an
image: its owner does, or the administrator who published it. All rules but that on
the file's format are checked before the download.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from os_acc import exception
from os_acc.bitstreams import options, properties
from os_acc.bitstreams.options import BitstreamSettings
from os_acc.objects.bitstream import Digest, Header, Image

#: An image that lacks one of these is not signed (Glance: "Image Signature
#: Verification").
SIGNATURE_PROPERTIES: Final = (
    "img_signature",
    "img_signature_hash_method",
    "img_signature_key_type",
    "img_signature_certificate_uuid",
)
_UNSIGNED: Final = "it is not signed"


def check(image: Image, rules: BitstreamSettings) -> None:
    """Reject an image that the policy forbids for every region.

    :raises ImageRefused: with all reasons, not only the first.
    """
    if found := reasons(image, rules):
        raise exception.ImageRefused(
            f"image {properties.title(image)} may not be programmed: "
            f"{'; '.join(found)}",
            hint=hint(found),
        )


def check_file(header: Header, image: Image, rules: BitstreamSettings) -> None:
    """Reject an image with a forbidden file format.

    :raises ImageRefused: the format is not allowed.
    """
    if header.format not in rules.file_formats:
        allowed = sorted(each.value for each in rules.file_formats)
        raise exception.ImageRefused(
            f"image {properties.title(image)} may not be programmed: its file is "
            f"{header.format.value}, not {_any_of(allowed)}",
            hint=f"check file_formats in [{options.GROUP.name}]",
        )


def reasons(image: Image, rules: BitstreamSettings) -> tuple[str, ...]:
    """Return the reasons against programming an image; empty if it is allowed."""
    return tuple(_reasons(image, rules))


def hint(found: Iterable[str]) -> str:
    """Return how to program the image nevertheless, for these reasons."""
    if all(each.startswith(_UNSIGNED) for each in found):
        return (
            "sign the file, and set these properties of the image ('Signing a "
            "bitstream' in the manual); or set signature = off in "
            f"[{options.GROUP.name}]"
        )
    return exception.ImageRefused.default_hint


def is_shown(image: Image, rules: BitstreamSettings) -> bool:
    """Return whether an error may name an image to any reader.

    With an administrator's credentials, images of all projects are found.
    """
    return image.visibility == "public" or image.owner in rules.projects


def _reasons(image: Image, rules: BitstreamSettings) -> Iterator[str]:
    if image.status != "active":
        yield f"its status is {exception.show(image.status)}"
    if image.hidden:
        yield "it is hidden"
    if image.owner not in rules.projects:
        whose = f"its owner's project {exception.show(image.owner)} is not allowed"
        if image.visibility != "public":
            visibility = exception.show(image.visibility)
            yield f"{whose}, and its visibility is {visibility}, not public"
        elif not rules.public:
            yield f"{whose}, and allow_public is off"
    if not image.size:
        yield "it has no data" if image.size == 0 else "its size is unknown"
    elif image.size > rules.max_size:
        yield (f"it has {image.size} bytes, more than the limit of {rules.max_size}")
    for what, value, allowed in (
        ("disk format", image.disk_format, rules.disk_formats),
        ("container format", image.container_format, rules.container_formats),
    ):
        if value not in allowed:
            yield f"its {what} is {exception.show(value)}, not {_any_of(allowed)}"
    try:
        Digest.of(image)
    except exception.ImageUnusable as error:
        yield error.message
    if rules.signed:
        missing = [
            name for name in SIGNATURE_PROPERTIES if not image.properties.get(name)
        ]
        if missing:
            yield f"{_UNSIGNED}: without {', '.join(missing)}"


def _any_of(allowed: frozenset[str] | list[str]) -> str:
    return " or ".join(sorted(allowed)) or "any other: none is allowed"
