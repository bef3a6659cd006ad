# SPDX-License-Identifier: Apache-2.0

"""The images of regions: the bitstream that each lease requires, and its file."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from types import MappingProxyType

from os_acc import exception
from os_acc.attach import region_requirements as reqs
from os_acc.attach.region_requirements import RegionRequirement
from os_acc.bitstreams import image_selection
from os_acc.bitstreams.library import Library
from os_acc.objects.bitstream import Bitstream, BitstreamRequest, Image
from os_acc.objects.instance import canonical_uuid
from os_acc.objects.lease import Lease
from os_acc.objects.region import RecordedImage, Region, functions_held
from os_acc.objects.request_group import title


def requirements(
    library: Library,
    leases: Sequence[Lease],
    booted: Image | None,
    stack: contextlib.ExitStack,
    deadline: float,
    recorded: RecordedImage | None = None,
) -> list[RegionRequirement]:
    """Return the requirements of the leases of a guest that have a region.

    :param booted: the image that the guest boots, if it was read.
    :param stack: holds the files of the bitstreams.
    :param recorded: the very file to program; None: as each lease requests.
    :raises InvalidExtraSpec: flavor and image contradict each other.
    :raises RegionUnusable: a device cannot be programmed.
    :raises BitstreamError: a bitstream does not exist, or is rejected.
    :raises ServiceUnavailable: the source of images does not answer.
    """
    found = []
    for lease in leases:
        request, region = lease.wanted.bitstream_request, lease.region
        if region is not None:
            request = image_selection.merged(request, booted)
        is_fixed = region is None or region.interface_id is None
        if request is not None and is_fixed and not _has_function(region, request):
            raise exception.RegionUnusable(
                f"{title(lease.group)} requests {request}, but {lease.address} "
                "cannot be programmed",
                hint="require the trait CUSTOM_PROGRAMMABLE in the group",
                reason=exception.RegionReason.NOT_PROGRAMMABLE,
            )
        if region is None:
            continue
        requirement = RegionRequirement(lease, region, required=lease.wanted.required)
        if request is not None and is_fixed:
            function = canonical_uuid(request.function_id)
            requirement = dataclasses.replace(requirement, function_id=function)
        elif request is not None:
            bitstream = _bitstream(library, request, region, recorded, stack, deadline)
            image_selection.check_agreement(booted, bitstream)
            function, unidentified = _requested_function(request, booted, bitstream)
            names_image = bool(request.bitstream_id or request.bitstream_name)
            requirement = dataclasses.replace(
                requirement,
                bitstream=bitstream,
                function_id=function,
                is_exact=names_image or len(reqs.implemented(bitstream)) != 1,
                unidentified=unidentified,
            )
        found.append(requirement)
    return found


def _has_function(region: Region | None, request: BitstreamRequest) -> bool:
    """Return whether a region that cannot be programmed has the requested function."""
    function = canonical_uuid(request.function_id)
    return region is not None and function in functions_held(region)


def _bitstream(
    library: Library,
    request: BitstreamRequest,
    region: Region,
    recorded: RecordedImage | None,
    stack: contextlib.ExitStack,
    deadline: float,
) -> Bitstream:
    if recorded is not None:
        hint = "name the image to program: os-acc region program ADDRESS --image ID"
        return same_file(library, region, recorded, stack, deadline, hint)
    image = library.image_for(request, region, deadline)
    return stack.enter_context(library.fetched(image, deadline, region=region))


def _requested_function(
    request: BitstreamRequest, booted: Image | None, bitstream: Bitstream
) -> tuple[str | None, str]:
    """Return the requested function, and a request that does not identify one, or ''.

    Such a request may name another function than the identified one.
    """
    found = {
        each: image_selection.function_of(each, bitstream)
        for each in image_selection.function_requests(request, booted)
    }
    functions = {each for each in found.values() if each is not None}
    if len(functions) > 1:
        raise exception.InvalidExtraSpec(
            f"flavor and instance's image request {len(functions)} functions of image "
            f"{bitstream.image} for one device: {' and '.join(map(str, found))}",
        )
    unidentified = next((str(each) for each in found if found[each] is None), "")
    return next(iter(functions), None), unidentified


def same_file(
    library: Library,
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
        image = library.about(recorded.id, deadline)
    except (exception.ImageNotFound, exception.ServiceUnavailable) as error:
        cached = library.kept(_image_of(recorded), region, deadline)
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
    return stack.enter_context(library.fetched(image, deadline, region=region))


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
