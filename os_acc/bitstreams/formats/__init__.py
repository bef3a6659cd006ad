# SPDX-License-Identifier: Apache-2.0

"""What the file of a bitstream says of itself, held against what is wanted.

The format is told by the file's first bytes, never by its name or by what a
property claims. Nothing here reads more than the head of a file, whatever
lengths and nesting that claims.
"""

from __future__ import annotations

import struct
from typing import BinaryIO, Final

from os_acc import exception
from os_acc.bitstreams import properties
from os_acc.bitstreams.formats import gbs, xclbin
from os_acc.bitstreams.formats.reader import exactly
from os_acc.objects.image import Header, Image, ImageFormat
from os_acc.objects.region import Region

_MAGIC: Final = 16
_LEGACY_GBS: Final = struct.pack("<I", gbs.MAGIC_NUMBER)
#: Files that people upload for bitstreams, and are none that hardware takes.
_NO_BITSTREAMS: Final = (
    (_LEGACY_GBS, "a green bitstream without metadata", "package it with OPAE's tools"),
    (b"xclbin", "an xclbin of an old format", "migrate it with xclbinutil"),
    (b"\x7fELF", "an ELF file, as an .aocx is", "upload the bitstream in it"),
    (b"PK\x03\x04", "a zip archive", "upload the bitstream in it"),
    (b"\x1f\x8b", "compressed by gzip", "upload it uncompressed"),
    (b"\xfd7zXZ\0", "compressed by xz", "upload it uncompressed"),
    (b"QFI\xfb", "a disk image of QEMU's (qcow2)", ""),
    (b"KDMV", "a disk image of VMware's (VMDK)", ""),
)

#: buffer_size of ``struct dfl_fpga_fme_port_pr`` has 32 bits.
_LARGEST_PAYLOAD: Final = 2**32 - 4


def read_header(file: BinaryIO, size: int) -> Header:
    """Read what the head of a bitstream's file says.

    :param file: opened for reading; it is read from its beginning.
    :param size: bytes that it has.
    :raises ImageInvalid: it is empty, ends too early, contradicts itself, or is
        of a kind that no hardware takes.
    """
    if size <= 0:
        raise exception.ImageInvalid("the file is empty")
    file.seek(0)
    magic = exactly(file, min(size, _MAGIC))
    if magic == gbs.GUID:
        return gbs.read(file, size)
    if magic.startswith(xclbin.MAGIC):
        return xclbin.read(file, size)
    for start, name, hint in _NO_BITSTREAMS:
        if magic.startswith(start):
            raise exception.ImageInvalid(f"the file is {name}", hint=hint)
    return Header(ImageFormat.RAW, payload_offset=0, payload_size=size)


def check(header: Header, image: Image, region: Region) -> None:
    """Hold a file's header against its image's properties and a region.

    :raises NotProgrammable: nothing tells what the region takes.
    :raises ImageMismatch: the file is built for something else, or nothing
        tells what it is built for.
    :raises ImageInvalid: the file is not what the properties say, or has
        nothing, too much or half a word for the hardware.
    """
    if region.interface_id is None:
        raise exception.NotProgrammable(
            f"{region} does not say what a bitstream for it has to be built for"
        )
    _check_interface(header, image, region, region.interface_id)
    _check_functions(header, image)
    _check_payload(header, image)


def _check_interface(header: Header, image: Image, region: Region, wanted: str) -> None:
    claimed = properties.region_id(image)
    if header.interface_id is None:
        if claimed is None:
            raise exception.ImageMismatch(
                f"nothing says what image {properties.title(image)} is built for: its "
                f"file does not, and it has no property {properties.REGION_NAMES[0]}",
                hint=f"set that to {wanted} if it is built for {region}",
            )
    elif claimed not in (None, header.interface_id):
        raise exception.ImageInvalid(
            f"image {properties.title(image)} is built for {header.interface_id} by "
            f"its file, and for {exception.show(claimed)} by its properties"
        )
    built_for = header.interface_id or claimed
    if built_for != wanted:
        raise exception.ImageMismatch(
            f"image {properties.title(image)} is built for "
            f"{exception.show(built_for)}, and {region} takes what is built for "
            f"{wanted}"
        )


def _check_functions(header: Header, image: Image) -> None:
    if not header.function_ids:
        return
    for claimed in properties.function_ids(image):
        if claimed not in header.function_ids:
            raise exception.ImageInvalid(
                f"image {properties.title(image)} implements "
                f"{', '.join(header.function_ids)} by its file, and "
                f"{exception.show(claimed)} by its properties"
            )


def _check_payload(header: Header, image: Image) -> None:
    title, size = properties.title(image), header.payload_size
    if size <= 0:
        raise exception.ImageInvalid(f"image {title} has nothing for the hardware")
    # What follows is of DFL (drivers/fpga/dfl-fme-pr.c); an xclbin goes to its
    # vendor's tool, which knows its sections.
    if header.format is ImageFormat.XCLBIN:
        return
    if size % 4:
        # The kernel would fill the last word with what its memory holds: the
        # hardware would get bytes that nobody has verified.
        raise exception.ImageInvalid(
            f"image {title} has {size} bytes for the hardware, which takes words of 4",
            hint="it is cut off, or was packaged from a file that was",
        )
    if size > _LARGEST_PAYLOAD:
        raise exception.ImageInvalid(
            f"image {title} has {size} bytes for the hardware, more than the "
            f"{_LARGEST_PAYLOAD} that the kernel takes"
        )
