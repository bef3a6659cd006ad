# SPDX-License-Identifier: Apache-2.0

"""Bitstream images, and the requests for them."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping


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
