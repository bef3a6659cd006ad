# SPDX-License-Identifier: Apache-2.0

"""Selection of the image that matches a bitstream request.

Images that the policy rejects are excluded first: an uploader must be able neither
to make a request ambiguous nor to have an image selected. An error still lists the
rejected images of a search, since the wanted image may be among them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from os_acc import exception
from os_acc.bitstreams import formats, options, policy, properties
from os_acc.objects.bitstream import (
    Bitstream,
    BitstreamRequest,
    Image,
    parse_bitstream_request,
)
from os_acc.objects.instance import canonical_uuid
from os_acc.objects.region import Region

#: Properties of a VM image that request a bitstream, by the field that they set.
#: The spellings of a function are those of the images that implement it.
_OF_VM_IMAGES: Final[Mapping[str, Sequence[str]]] = {
    "bitstream_id": properties.spellings("bitstream_id"),
    "bitstream_name": properties.spellings("bitstream_name"),
    "function_id": properties.FUNCTION_ID_NAMES,
    "function_name": properties.FUNCTION_NAME_NAMES,
}
# Images named in a message.
_MOST_LISTED: Final = 8


@dataclasses.dataclass(frozen=True, slots=True)
class _Found:
    """An image that matches a request, and the reasons against it."""

    image: Image
    refused: tuple[str, ...]
    differs: tuple[str, ...]

    def __str__(self) -> str:
        why = ", ".join(self.refused + self.differs)
        title = properties.title(self.image)
        return f"{title}: {why}" if why else title


def searches(
    request: BitstreamRequest, rules: options.BitstreamSettings
) -> Iterator[dict[str, str]]:
    """Yield the filters of a source for the images that the policy allows.

    With an administrator's credentials, an unfiltered search lists the images of all
    projects; it is slow in clouds with many images. UUIDs can be written in several
    ways, and a source compares text: for a function, all bitstreams are searched.
    """
    name = request.bitstream_name
    wanted = {"name": name} if name else {"tag": properties.TAG}
    for project in sorted(rules.projects):
        yield wanted | {"owner": project}
    if rules.public:
        yield wanted | {"visibility": "public"}


def choose(
    request: BitstreamRequest,
    region: Region,
    images: Iterable[Image],
    rules: options.BitstreamSettings,
) -> Image:
    """Return the one image that matches the request, fits, and is allowed.

    :param images: the images of a source; those that do not match are ignored.
    :raises RegionUnusable: the region has no interface ID.
    :raises ImageNotFound: no image matches, or none of the matches is allowed.
    :raises ImageRefused: the image with the requested ID is not allowed.
    :raises ImageUnusable: MISMATCH: the allowed images are for other regions,
        vendors or boards. AMBIGUOUS: several images match.
    """
    formats.required_interface(region)
    found = [
        _check(image, request, region, rules)
        for image in {image.id: image for image in images}.values()
        if answers(request, image)
    ]
    fitting = [each for each in found if not each.refused and not each.differs]
    if len(fitting) == 1:
        return fitting[0].image
    if fitting:
        raise exception.ImageUnusable(
            f"{len(fitting)} images match {request} and fit {region}: "
            f"{_listed(fitting)}",
            reason=exception.ImageReason.AMBIGUOUS,
        )
    raise _none(request, region, found)


def answers(request: BitstreamRequest, image: Image) -> bool:
    """Return whether an image matches a request by ID, name or properties.

    UUIDs are compared in canonical form, names exactly.
    """
    matches = []
    if request.bitstream_id:
        wanted = properties.canonical(request.bitstream_id)
        matches.append(properties.canonical(image.id) == wanted)
    if request.bitstream_name:
        matches.append(image.name == request.bitstream_name)
    if request.function_id:
        wanted = properties.canonical(request.function_id)
        matches.append(wanted in properties.function_ids(image))
    if request.function_name:
        matches.append(request.function_name in properties.function_names(image))
    return bool(matches) and all(matches)


def merged(
    flavor: BitstreamRequest | None, vm_image: Image | None
) -> BitstreamRequest | None:
    """Return the combined request of a flavor and the VM's image.

    :param vm_image: the image that the guest boots; its author is not trusted.
    :returns: the flavor's request, else the image's, whose parts one bitstream has
        to match together; None without either.
    :raises InvalidExtraSpec: the requests contradict each other, or the image's
        request is invalid.
    """
    asked = list(_asked_by(vm_image))
    if flavor is None:
        for request in asked:
            if request.bitstream_id:
                # check_agreement() compares this image with the other requests.
                return request
        combined = {
            field.name: value
            for request in asked
            for field in dataclasses.fields(BitstreamRequest)
            if (value := getattr(request, field.name))
        }
        return BitstreamRequest(**combined) if combined else None
    for request in asked:
        for field in dataclasses.fields(BitstreamRequest):
            ours, theirs = getattr(flavor, field.name), getattr(request, field.name)
            if ours and theirs and ours != theirs:
                raise exception.InvalidExtraSpec(
                    f"the flavor requests {flavor}, but the instance's image "
                    f"requests {request}"
                )
    return flavor


def check_agreement(vm_image: Image | None, bitstream: Bitstream) -> None:
    """Reject a bitstream that does not match the request of the VM's image.

    A flavor may request an image by ID, and the VM's image a function: only the
    selected bitstream shows whether they agree.

    :param bitstream: the selected bitstream; a fact that neither its image nor
        its file states is not checked.
    :raises InvalidExtraSpec: the requests contradict each other.
    """
    image = bitstream.image
    for request in _asked_by(vm_image):
        if request.bitstream_id or request.bitstream_name:
            agrees = answers(request, image)
        elif request.function_id:
            stated = {*properties.function_ids(image), *bitstream.header.function_ids}
            agrees = not stated or request.function_id in stated
        else:
            names = properties.function_names(image)
            agrees = not names or request.function_name in names
        if not agrees:
            raise exception.InvalidExtraSpec(
                f"image {properties.title(image)} was selected, but the "
                f"instance's image requests {request}"
            )


def function_requests(
    request: BitstreamRequest, vm_image: Image | None
) -> tuple[BitstreamRequest, ...]:
    """Return the requests of a flavor and of the VM's image that name a function."""
    asked = [request, *_asked_by(vm_image)]
    return tuple(each for each in asked if each.function_id or each.function_name)


def function_of(request: BitstreamRequest, bitstream: Bitstream) -> str | None:
    """Return the canonical UUID of the requested function of a bitstream.

    An image lists its IDs and its names in the same order; IDs that are no UUIDs in
    that of the file.

    :returns: None: the image does not state which function has this name.
    """
    if uuid := canonical_uuid(request.function_id):
        return uuid
    of_file = bitstream.header.function_ids
    ids = properties.function_ids(bitstream.image)
    if request.function_id:
        name, names, uuids = request.function_id, ids, of_file
    else:
        name = request.function_name
        names = properties.function_names(bitstream.image)
        uuids = tuple(filter(None, map(canonical_uuid, ids))) or of_file
    # An image may list one id only, although it has several functions.
    if len(uuids) == 1 and len(of_file or names) <= 1:
        return uuids[0]
    if name not in names or len(names) != len(uuids):
        return None
    return uuids[names.index(name)]


def _asked_by(vm_image: Image | None) -> Iterator[BitstreamRequest]:
    if vm_image is None:
        return
    for field, names in _OF_VM_IMAGES.items():
        found: dict[BitstreamRequest, str] = {}
        for key, value in properties.stated(vm_image, names):
            try:
                found.setdefault(parse_bitstream_request(field, value), key)
            except exception.InvalidInput as error:
                raise exception.InvalidExtraSpec(
                    f"property {key} of the instance's image "
                    f"{properties.title(vm_image)}: {error.message}",
                    hint=error.hint,
                ) from error
        if len(found) > 1:
            raise exception.InvalidExtraSpec(
                f"properties of the instance's image {properties.title(vm_image)} "
                "contradict each other: "
                + ", ".join(f"{key} requests {each}" for each, key in found.items()),
                hint=f"keep only one of {', '.join(found.values())}",
            )
        yield from found


def _check(
    image: Image,
    request: BitstreamRequest,
    region: Region,
    rules: options.BitstreamSettings,
) -> _Found:
    if not policy.is_shown(image, rules):
        # Only a request by ID finds it: its name and its owner are not shown.
        return _Found(
            dataclasses.replace(image, name=""),
            ("it is neither public nor of an allowed project",),
            (),
        )
    refused = policy.reasons(image, rules)
    # An ID identifies one image. A search also finds VM images, which have the
    # same properties to request a bitstream.
    if not request.bitstream_id and properties.TAG not in image.tags:
        refused = (f"it lacks the tag {properties.TAG}", *refused)
    return _Found(image, refused, tuple(_differences(image, region)))


def _differences(image: Image, region: Region) -> Iterator[str]:
    built_for = properties.region_id(image)
    # Without this property, the header of the file decides (formats.check).
    if built_for not in (None, region.interface_id):
        yield f"it is built for {exception.show(built_for)}"
    for names, is_it in (
        (properties.VENDOR_NAMES, properties.is_vendor),
        (properties.BOARD_NAMES, properties.is_board),
    ):
        for name, value in properties.stated(image, names):
            if not is_it(value, region.identity):
                yield f"its {name} is {exception.show(value)}"


def _none(
    request: BitstreamRequest, region: Region, found: Sequence[_Found]
) -> Exception:
    if not found:
        return exception.ImageNotFound(
            f"no image matches {request}", hint=_requirements(request)
        )
    listed = _listed(found)
    if any(not each.refused for each in found):
        return exception.ImageUnusable(
            f"no image that matches {request} fits {region} (interface "
            f"{region.interface_id} of {region.identity}): {listed}",
            reason=exception.ImageReason.MISMATCH,
        )
    kind = exception.ImageRefused if request.bitstream_id else exception.ImageNotFound
    return kind(
        f"no image that matches {request} may be programmed into {region}: {listed}",
        hint=policy.hint(reason for each in found for reason in each.refused),
    )


def _requirements(request: BitstreamRequest) -> str:
    if request.bitstream_id:
        return "the image may exist but not be visible to os_acc"
    names = (
        properties.FUNCTION_ID_NAMES
        if request.function_id
        else properties.FUNCTION_NAME_NAMES
    )
    value = "" if request.bitstream_name else f"a property {names[0]} with this value, "
    return (
        f"the image needs {value}the tag {properties.TAG}, and an owner in "
        f"allowed_projects of [{options.GROUP.name}], unless it is public"
    )


def _listed(found: Sequence[_Found]) -> str:
    # Allowed images first: the wanted one is probably among them.
    in_order = sorted(found, key=lambda each: bool(each.refused))
    listed = list(map(str, in_order[:_MOST_LISTED]))
    if (more := len(found) - _MOST_LISTED) > 0:
        listed.append(f"and {more} more")
    return "; ".join(listed)
