# SPDX-License-Identifier: Apache-2.0

"""The images of regions: the bitstream that each lease requires, and its file."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from types import MappingProxyType

from os_acc import exception
from os_acc.attach import region_requirements as reqs
from os_acc.attach.region_requirements import RegionRequirement
from os_acc.bitstreams import image_selection
from os_acc.bitstreams.library import Library
from os_acc.objects.bitstream import Bitstream, BitstreamRequest, Image
from os_acc.objects.lease import Lease
from os_acc.objects.region import RecordedImage, Region
from os_acc.objects.request_group import title


class RegionImages:
    """Find and fetch the bitstreams that the flavor and the guest's image request."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def booted(self, lease: Lease, image_id: str, deadline: float) -> Image | None:
        """Return the image that the guest of a lease boots.

        :param image_id: '' if the caller does not know it.
        :returns: None if it is unknown, or not visible and not required
            (``instance_images``).
        :raises ImageNotFound: it is required, but not visible.
        :raises ServiceUnavailable: the source of images does not answer.
        """
        if not image_id:
            return None
        return self._library.booted(image_id, lease.consumer_title, deadline)

    def requirements(
        self,
        leases: Sequence[tuple[Lease, Region | None]],
        booted: Image | None,
        stack: contextlib.ExitStack,
        deadline: float,
        recorded: RecordedImage | None = None,
    ) -> list[RegionRequirement]:
        """Return the requirements of the leases of a guest that have a region.

        :param booted: the image that the guest boots, if it is known.
        :param stack: holds the files of the bitstreams.
        :param recorded: the very file to program; None: as each lease requests.
        :raises InvalidExtraSpec: flavor and image contradict each other.
        :raises RegionUnusable: a device cannot be programmed.
        :raises BitstreamError: a bitstream does not exist, or is rejected.
        :raises ServiceUnavailable: the source of images does not answer.
        """
        return [
            requirement
            for lease, region in leases
            if (
                requirement := self._of(
                    lease, region, booted, recorded, stack, deadline
                )
            )
        ]

    def _of(
        self,
        lease: Lease,
        region: Region | None,
        booted: Image | None,
        recorded: RecordedImage | None,
        stack: contextlib.ExitStack,
        deadline: float,
    ) -> RegionRequirement | None:
        request = lease.wanted.bitstream_request
        if region is not None:
            request = image_selection.merged(request, booted)
        if region is None or region.interface_id is None:
            if request is not None and not reqs.is_fixed(region, request):
                raise exception.RegionUnusable(
                    f"{title(lease.group)} requests {request}, but {lease.address} "
                    "cannot be programmed",
                    hint="require the trait CUSTOM_PROGRAMMABLE in the group",
                    reason=exception.RegionReason.NOT_PROGRAMMABLE,
                )
            if region is None:
                return None
        bitstream = None
        if request is not None and region.interface_id is not None:
            bitstream = self._bitstream(request, region, recorded, stack, deadline)
            image_selection.check_agreement(booted, bitstream)
        return reqs.of_request(
            lease, region, request, bitstream, lease.wanted.required, booted
        )

    def _bitstream(
        self,
        request: BitstreamRequest,
        region: Region,
        recorded: RecordedImage | None,
        stack: contextlib.ExitStack,
        deadline: float,
    ) -> Bitstream:
        if recorded is not None:
            hint = "name the image to program: os-acc region program ADDRESS --image ID"
            return self.same_file(region, recorded, stack, deadline, hint)
        image = self._library.image_for(request, region, deadline)
        return stack.enter_context(
            self._library.fetched(image, deadline, region=region)
        )

    def same_file(
        self,
        region: Region,
        recorded: RecordedImage,
        stack: contextlib.ExitStack,
        deadline: float,
        hint: str,
    ) -> Bitstream:
        """Return the very file with which a region was programmed, verified.

        The cache serves it if the image service does not answer: after a power cut
        guests may start before that service.

        :param stack: holds the file.
        :param hint: for the error of an image that has another file now, or is gone.
        :raises ImageUnusable: INVALID: the image has another file now.
        :raises ImageNotFound: the image is gone, and its file is not cached.
        :raises ServiceUnavailable: the source does not answer, nor is it cached.
        """
        try:
            image = self._library.about(recorded.id, deadline)
        except (exception.ImageNotFound, exception.ServiceUnavailable) as error:
            cached = self._library.kept(_image_of(recorded), region, deadline)
            bitstream = stack.enter_context(cached)
            if bitstream is None:
                if isinstance(error, exception.ImageNotFound):
                    error.hint = hint
                raise
            return bitstream
        if reqs.recorded_of(image) != recorded:
            raise exception.ImageUnusable(
                f"image {image} has changed since it was programmed to {region}",
                hint=hint,
                reason=exception.ImageReason.INVALID,
            )
        return stack.enter_context(
            self._library.fetched(image, deadline, region=region)
        )


def _image_of(recorded: RecordedImage) -> Image:
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
