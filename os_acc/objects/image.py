# SPDX-License-Identifier: Apache-2.0

"""Bitstream images, and what requests and regions ask of them."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True)
class Image:
    """An image as its source describes it, in Glance's terms.

    See the Image service API v2, "Show image".

    :ivar size: bytes; None where the source does not know.
    :ivar hash_algo: as :func:`hashlib.new` takes it; '' where there is none.
    :ivar hash_value: hexadecimal, lower case; '' where there is none.
    :ivar properties: everything beyond Glance's own fields, read only.
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
    """Which bitstream a request group asks for: one that has all that is set.

    A flavor sets one of the four, a VM's own image one or several.

    :ivar bitstream_id: the id of an image.
    :ivar bitstream_name: the name of an image.
    :ivar function_id: canonical UUID, or other text, of what it implements.
    :ivar function_name: the name of what it implements.
    """

    bitstream_id: str = ""
    bitstream_name: str = ""
    function_id: str = ""
    function_name: str = ""

    def __str__(self) -> str:
        told = (
            (field.name, getattr(self, field.name))
            for field in dataclasses.fields(self)
        )
        return ", ".join(f"{name} {value}" for name, value in told if value)


class ImageFormat(enum.Enum):
    """What the file of a bitstream is.

    GBS: Intel's Green Bitstream of OPAE; XCLBIN: AMD/Xilinx' axlf container;
    RAW: anything else, which is written as it is.
    """

    GBS = "gbs"
    XCLBIN = "xclbin"
    RAW = "raw"


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    """What the beginning of a bitstream's file says.

    :ivar payload_offset: bytes before what the hardware is given.
    :ivar payload_size: bytes that the hardware is given.
    :ivar interface_id: canonical UUID of the regions that it is built for;
        None where the format does not say.
    :ivar function_ids: canonical UUIDs of what it implements, where the
        format says.
    """

    format: ImageFormat
    payload_offset: int
    payload_size: int
    interface_id: str | None = None
    function_ids: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Bitstream:
    """A verified image in the cache.

    :ivar path: its file; whoever programs it finds it by the hash, not by
        this.
    :ivar size: bytes of the file.
    """

    image: Image
    path: str
    size: int
    header: Header
