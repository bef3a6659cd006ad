# SPDX-License-Identifier: Apache-2.0

"""GBS, the green bitstreams of Intel's OPAE.

A GUID of 16 bytes, the length of the metadata (32 bits, little endian), the
metadata in JSON, and what the hardware is given. OPAE SDK:
libraries/libbitstream (bitstream.h, metadatav1.c) and python/packager. Those
who read the format elsewhere take 1 to 4095 bytes of metadata.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import BinaryIO, Final, NoReturn, TypeVar

from os_acc import exception
from os_acc.bitstreams.formats.reader import exactly
from os_acc.objects.image import Header, ImageFormat
from os_acc.objects.instance import canonical_uuid

GUID: Final = b"XeonFPGA\xb7GBSv001"
#: ``magic-no`` in the metadata; what a file begins with that has none.
MAGIC_NUMBER: Final = 0x1D1F8680

_LENGTH: Final = struct.Struct("<I")
_LONGEST: Final = 4095
# 640 and 650 are 1: files of two releases have the release in its place.
_VERSIONS: Final = frozenset({1, 640, 650})

_T = TypeVar("_T")


def read(file: BinaryIO, size: int) -> Header:
    """Read the header; the file stands behind the GUID.

    :param size: bytes that the file has.
    :raises ImageInvalid: it is not as OPAE's tools write it.
    """
    (length,) = _LENGTH.unpack(exactly(file, _LENGTH.size))
    if not 1 <= length <= _LONGEST:
        _refuse(f"claims {length} bytes of metadata; it may have 1 to {_LONGEST}")
    offset = len(GUID) + _LENGTH.size + length
    if offset > size:
        _refuse(f"claims {length} bytes of metadata, and has {size} in all")
    metadata = _metadata(exactly(file, length))
    version = _member(metadata, "version", int)
    if version not in _VERSIONS:
        _refuse(f"has metadata of version {exception.show(version)}")
    image: Mapping[str, object] = _member(metadata, "afu-image", dict)
    if image.get("magic-no", MAGIC_NUMBER) != MAGIC_NUMBER:
        _refuse(f"has magic-no {exception.show(image['magic-no'])}")
    return Header(
        ImageFormat.GBS,
        payload_offset=offset,
        payload_size=size - offset,
        interface_id=_uuid(image, "interface-uuid"),
        function_ids=_functions(image),
    )


def _functions(image: Mapping[str, object]) -> tuple[str, ...]:
    clusters = _member(image, "accelerator-clusters", list)
    if not clusters:
        _refuse("implements nothing: its accelerator-clusters are empty")
    found: dict[str, None] = {}
    for cluster in clusters:
        if not isinstance(cluster, dict):
            _refuse(f"has {exception.show(cluster)} among its accelerator-clusters")
        found[_uuid(cluster, "accelerator-type-uuid")] = None
    return tuple(found)


def _metadata(raw: bytes) -> Mapping[str, object]:
    try:
        # Readers in C take a text that ends with a zero byte.
        found = json.loads(raw.decode().rstrip("\0 \t\r\n"), object_pairs_hook=_once)
    # Of nesting that is too deep, Python's reader says RecursionError.
    except (ValueError, RecursionError) as error:
        raise exception.ImageInvalid(
            "the metadata of the green bitstream is no JSON: "
            f"{exception.show(str(error))}"
        ) from error
    if not isinstance(found, dict):
        _refuse(f"has {exception.show(found)} for metadata")
    return found


def _once(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    # Readers differ in which of two they take: whoever programs might take
    # another one than we have checked.
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _member(within: Mapping[str, object], key: str, kind: type[_T]) -> _T:
    found = within.get(key)
    # A bool is an int to Python.
    if type(found) is not kind:
        _refuse(f"has {exception.show(found)} for {key}")
    return found


def _uuid(within: Mapping[str, object], key: str) -> str:
    found = canonical_uuid(within.get(key))
    if found is None:
        _refuse(f"has {exception.show(within.get(key))} for {key}, not a UUID")
    return found


def _refuse(what: str) -> NoReturn:
    raise exception.ImageInvalid(f"the green bitstream {what}")
