# SPDX-License-Identifier: Apache-2.0

"""Images, the bitstreams in them, their digests, and requests for bitstreams."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import re
from collections.abc import Mapping
from typing import Final, Self

from os_acc import exception
from os_acc.objects.instance import canonical_uuid


@dataclasses.dataclass(frozen=True, slots=True)
class Image:
    """An image as its source describes it, in Glance's terms.

    See the Image service API v2, "Show image".

    :ivar size: bytes; None if unknown to the source.
    :ivar hash_algo: valid for :func:`hashlib.new`; '' if there is none.
    :ivar hash_value: hexadecimal, lower case; '' if there is none.
    :ivar properties: all properties beyond Glance's own fields, read-only.
    """

    id: str
    name: str
    status: str
    visibility: str
    hidden: bool
    owner: str
    size: int | None
    disk_format: str
    container_format: str
    hash_algo: str
    hash_value: str
    tags: frozenset[str]
    properties: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.id} ({self.name})" if self.name else self.id


@dataclasses.dataclass(frozen=True, order=True, slots=True)
class BitstreamRequest:
    """The bitstream that a request group requests: one that matches all set fields.

    A flavor sets one of the four, a VM's own image one or several.

    :ivar bitstream_id: the id of an image.
    :ivar bitstream_name: the name of an image.
    :ivar function_id: canonical UUID, or other text, of the function.
    :ivar function_name: the name of the function.
    """

    bitstream_id: str = ""
    bitstream_name: str = ""
    function_id: str = ""
    function_name: str = ""

    def __str__(self) -> str:
        fields = (
            (field.name, getattr(self, field.name))
            for field in dataclasses.fields(self)
        )
        return ", ".join(f"{name} {value}" for name, value in fields if value)


class ImageFormat(enum.Enum):
    """The format of a bitstream's file.

    GBS: Intel's Green Bitstream of OPAE; XCLBIN: AMD/Xilinx' axlf container;
    RAW: any other, written unchanged.
    """

    GBS = "gbs"
    XCLBIN = "xclbin"
    RAW = "raw"


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    """The header of a bitstream's file.

    :ivar payload_offset: bytes before the payload for the hardware.
    :ivar payload_size: bytes of the payload for the hardware.
    :ivar interface_id: canonical UUID of the compatible regions; None if the
        format does not specify it.
    :ivar function_ids: canonical UUIDs of the implemented functions, if the
        format specifies them.
    """

    format: ImageFormat
    payload_offset: int
    payload_size: int
    interface_id: str | None = None
    function_ids: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Bitstream:
    """A verified image in the cache.

    :ivar path: its file. The programming side looks it up by hash, not by this
        path.
    :ivar size: bytes of the file.
    """

    image: Image
    path: str
    size: int
    header: Header


#: Hexadecimal digits of each trusted algorithm. MD5 and SHA-1 are excluded:
#: collisions are feasible.
DIGEST_LENGTHS = {
    "blake2b": 128,
    "blake2s": 64,
    "sha256": 64,
    "sha384": 96,
    "sha512": 128,
    "sha3_256": 64,
    "sha3_384": 96,
    "sha3_512": 128,
}

_FILE_NAME = re.compile(r"([a-z0-9_]+)-([0-9a-f]+)", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class Digest:
    """The expected hash of an image's data.

    :ivar algorithm: one of :data:`DIGEST_LENGTHS`, valid for :func:`hashlib.new`.
    :ivar value: hexadecimal, lower case.
    """

    algorithm: str
    value: str

    @classmethod
    def of(cls, image: Image) -> Self:
        """Return the digest of an image (Glance's ``os_hash_algo``, ``os_hash_value``).

        :raises ImageUnusable: it is missing, malformed or of an untrusted algorithm.
        """
        algorithm, value = image.hash_algo, image.hash_value
        if not algorithm or not value:
            raise exception.ImageUnusable(
                f"image {image} has no hash",
                hint="upload the image again: Glance then sets os_hash_algo and "
                "os_hash_value",
                reason=exception.ImageReason.INVALID,
            )
        if algorithm not in DIGEST_LENGTHS:
            raise exception.ImageUnusable(
                f"the hash of image {image} uses {exception.show(algorithm)}, "
                "which is not accepted",
                hint="set hashing_algorithm in Glance to one of "
                f"{', '.join(DIGEST_LENGTHS)}, and upload the image again",
                reason=exception.ImageReason.INVALID,
            )
        found = cls.of_file_name(f"{algorithm}-{value}")
        if found is None:
            raise exception.ImageUnusable(
                f"the hash of image {image}, {exception.show(value)}, does "
                f"not have the {DIGEST_LENGTHS[algorithm]} digits of {algorithm}",
                reason=exception.ImageReason.INVALID,
            )
        return found

    @classmethod
    def of_file_name(cls, name: str) -> Self | None:
        """Return the digest in a file's name; None if there is none."""
        found = _FILE_NAME.fullmatch(name)
        if found is None:
            return None
        algorithm, value = found.groups()
        if DIGEST_LENGTHS.get(algorithm) != len(value):
            return None
        return cls(algorithm, value)

    @property
    def file_name(self) -> str:
        """The name of the image's file in the cache."""
        return f"{self.algorithm}-{self.value}"

    def new(self) -> hashlib._Hash:
        """Return a new hash object of this algorithm."""
        return hashlib.new(self.algorithm)

    def __str__(self) -> str:
        return f"{self.algorithm} {self.value}"


_OF_FUNCTIONS: Final = ("function_id", "function_name")
_A_UUID: Final = "00000000-0000-0000-0000-000000000000"
# The limit of Glance for the value of a property.
_LONGEST = 255
_FUNCTION_TRAIT = re.compile(r"CUSTOM_FPGA_[A-Z0-9]+_FUNCTION_([0-9A-F_]{32,36})")
_CYBORGS_TRAIT = re.compile(r"CUSTOM_FPGA_FUNCTION_ID_[A-Z0-9]+_([0-9A-F_]{32,36})")
_REGION_TRAIT = re.compile(
    r"CUSTOM_FPGA_(REGION_[A-Z0-9]+|[A-Z0-9]+_REGION)_[0-9A-F_]{32,36}"
)


def parse_bitstream_request(name: str, text: str) -> BitstreamRequest:
    """Parse one field of a bitstream request.

    :param name: a field of :class:`BitstreamRequest`.
    :param text: an image's uuid; an image's name; a function's uuid, its
        trait, or another id that images carry; a function's name.
    :raises InvalidInput: the text is not valid for the field, or names several
        functions.
    """
    if not text or len(text) > _LONGEST or not text.isprintable():
        raise exception.InvalidInput(
            f"{exception.show(text)} is not a valid {name}",
            hint=f"use 1 to {_LONGEST} printable characters",
        )
    if name in _OF_FUNCTIONS and "," in text:
        # Bitstream images list their functions so; no single one has a comma.
        raise exception.InvalidInput(
            f"{exception.show(text)} is not one {name}, but several",
            hint="request one function; several functions need a request group of the "
            "flavor for each",
        )
    if name == "bitstream_id":
        uuid = canonical_uuid(text)
        if uuid is None:
            raise exception.InvalidInput(
                f"{exception.show(text)} is not an image id",
                hint=f"use the form {_A_UUID}, or request an image by its name with "
                "bitstream_name",
            )
        text = uuid
    elif name == "function_id":
        text = canonical_function_id(text)
    return BitstreamRequest(**{name: text})


def canonical_function_id(text: str) -> str:
    """Return the canonical form of a function's id: a uuid if it is one."""
    match = _FUNCTION_TRAIT.fullmatch(text) or _CYBORGS_TRAIT.fullmatch(text)
    plain = match.group(1).replace("_", "") if match else text
    return canonical_uuid(plain) or text


def names_function(trait: str) -> bool:
    """Return whether a trait names the function that a region holds."""
    return bool(_FUNCTION_TRAIT.fullmatch(trait) or _CYBORGS_TRAIT.fullmatch(trait))


def names_region(trait: str) -> bool:
    """Return whether a trait names a region by its accepted bitstreams."""
    return _REGION_TRAIT.fullmatch(trait) is not None
