# SPDX-License-Identifier: Apache-2.0

"""The very file with which a region was programmed before."""

from __future__ import annotations

import contextlib
from types import MappingProxyType

from os_acc import exception
from os_acc.bitstreams.library import Library
from os_acc.objects.image import Bitstream, Image
from os_acc.objects.region import RecordedImage, Region


def same_file(
    images: Library,
    region: Region,
    recorded: RecordedImage,
    stack: contextlib.ExitStack,
    deadline: float,
    hint: str,
) -> Bitstream:
    """Return the recorded file, verified; it is kept until the stack ends.

    The cache serves it if the image service does not answer: after a power cut guests
    may start before that service.

    :param hint: for the error of an image that has another file now.
    :raises ImageUnusable: the image has another file now.
    :raises ImageNotFound: the image is gone, and not cached.
    :raises ServiceUnavailable: the service does not answer, and the image is not
        cached.
    """
    try:
        image = images.about(recorded.id, deadline)
    except (exception.ImageNotFound, exception.ServiceUnavailable):
        cached = images.kept(_image_of(recorded), region, deadline)
        bitstream = stack.enter_context(cached)
        if bitstream is None:
            raise
        return bitstream
    if recorded_of(image) != recorded:
        raise exception.ImageUnusable(
            f"image {image} has changed since it was programmed to {region}",
            hint=hint,
            reason=exception.ImageReason.INVALID,
        )
    return stack.enter_context(images.fetched(image, deadline, region=region))


def recorded_of(image: Image) -> RecordedImage:
    """Return the fields of an image that identify its file."""
    return RecordedImage(image.id, image.hash_algo, image.hash_value)


def _image_of(recorded: RecordedImage) -> Image:
    """Return an image with the fields that are recorded."""
    return Image(
        id=recorded.id,
        name="",
        status="",
        visibility="",
        hidden=False,
        owner="",
        size=None,
        disk_format="",
        container_format="",
        hash_algo=recorded.hash_algo,
        hash_value=recorded.hash_value,
        tags=frozenset(),
        properties=MappingProxyType({}),
    )
