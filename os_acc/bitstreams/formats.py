# SPDX-License-Identifier: Apache-2.0

"""Parser of bitstream files, and the checks of their headers.

The first bytes of a file determine its format, not its name or a property of the
image. Only the head of a file is read; lengths and nesting that it claims do not
extend that.

GBS is the green bitstream of Intel's OPAE: a GUID of 16 bytes, the length of the
metadata (32 bits, little endian), the metadata in JSON, and the data for the
hardware. OPAE SDK: libraries/libbitstream (bitstream.h, metadatav1.c) and
python/packager. Other readers of the format accept 1 to 4095 bytes of metadata.

xclbin is the container of AMD/Xilinx (``struct axlf``): a fixed head, a table of
sections, the sections, all little endian. XRT: src/runtime_src/core/include/xclbin.h.
``xclbinutil`` takes ``m_interface_uuid`` from the metadata of the partition; it is
zero in files for single-stage shells. The vendor's tool gets the entire file.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Sequence
from typing import BinaryIO, Final, NoReturn

from os_acc import exception
from os_acc.bitstreams import properties
from os_acc.objects.bitstream import Header, Image, ImageFormat
from os_acc.objects.instance import canonical_uuid
from os_acc.objects.region import Region
from os_acc.rest.responses import JsonValue


def exactly(file: BinaryIO, count: int) -> bytes:
    """Read exactly ``count`` bytes.

    :raises ImageUnusable: the file ends before.
    """
    found = b""
    while len(found) < count:
        piece = file.read(count - len(found))
        if not piece:
            raise exception.ImageUnusable(
                f"the file ends {count - len(found)} bytes too early"
            )
        found += piece
    return found


GUID: Final = b"XeonFPGA\xb7GBSv001"
#: ``magic-no`` in the metadata; a file without metadata begins with it.
MAGIC_NUMBER: Final = 0x1D1F8680

_LENGTH: Final = struct.Struct("<I")
_LONGEST: Final = 4095
# 640 and 650 equal 1: files of two releases have the release number here.
_VERSIONS: Final = frozenset({1, 640, 650})


def read_gbs(file: BinaryIO, size: int) -> Header:
    """Read the GBS header; the file is positioned behind the GUID.

    :param size: the size of the file in bytes.
    :raises ImageUnusable: the file differs from the output of OPAE's tools.
    """
    (length,) = _LENGTH.unpack(exactly(file, _LENGTH.size))
    if not 1 <= length <= _LONGEST:
        _gbs_invalid(f"claims {length} bytes of metadata; it may have 1 to {_LONGEST}")
    offset = len(GUID) + _LENGTH.size + length
    if offset > size:
        _gbs_invalid(
            f"claims {length} bytes of metadata, but has {size} bytes in total"
        )
    try:
        # Readers in C expect a terminating zero byte.
        text = exactly(file, length).decode().rstrip("\0 \t\r\n")
        metadata = JsonValue(json.loads(text, object_pairs_hook=_once), "metadata")
        version, image = metadata["version"].integer(), metadata["afu-image"]
        magic = image["magic-no"].integer() if "magic-no" in image else MAGIC_NUMBER
        interface = image["interface-uuid"].uuid()
        functions = [
            each["accelerator-type-uuid"].uuid()
            for each in image["accelerator-clusters"]
        ]
    # RecursionError: too deep nesting.
    except (ValueError, RecursionError) as error:
        raise exception.ImageUnusable(
            f"the metadata of the green bitstream are invalid: {error}"
        ) from error
    if version not in _VERSIONS:
        _gbs_invalid(f"has metadata of version {version}")
    if magic != MAGIC_NUMBER:
        _gbs_invalid(f"has magic-no {magic}")
    if not functions:
        _gbs_invalid("implements no function: its accelerator-clusters are empty")
    return Header(
        ImageFormat.GBS,
        payload_offset=offset,
        payload_size=size - offset,
        interface_id=canonical_uuid(interface),
        function_ids=tuple(dict.fromkeys(filter(None, map(canonical_uuid, functions)))),
    )


def _once(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    # Readers differ in the duplicate that they use: the programming tool might use
    # a value that was not checked here.
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _gbs_invalid(what: str) -> NoReturn:
    raise exception.ImageUnusable(f"the green bitstream {what}")


MAGIC: Final = b"xclbin2\0"

_HEAD: Final = struct.Struct(
    "<8s"  # m_magic
    "i28s256sQ"  # m_signature_length, reserved, m_keyBlock, m_uniqueId
    "QQQHBBHH"  # m_length, two time stamps, version, m_mode, m_actionMask
    "16s64s16s16s"  # m_interface_uuid, m_platformVBNV, uuid, m_debug_bin
    "I4x"  # m_numSections
)
_SECTION: Final = struct.Struct("<I16s4xQQ")

# XRT accepts 65536; real files have 20, and the read size must be bounded.
_MOST_SECTIONS: Final = 512
# XCLBIN_FLAT, XCLBIN_PR; the other modes are for emulation and the card's start.
_MODES: Final = frozenset({0, 1})
_BITSTREAM: Final = 0
_PDI: Final = 18
_PARTIAL_PDI: Final = 19
#: Sections for the card's flash: the file is a shell, not a bitstream.
_OF_A_SHELL: Final = {12: "MCS", 13: "BMC", 24: "ASK_FLASH"}


def read_xclbin(file: BinaryIO, size: int) -> Header:
    """Read the xclbin header, from the start of the file.

    :param size: the size of the file in bytes.
    :raises ImageUnusable: it contradicts itself, contains no bitstream, or is for
        a card's flash.
    """
    if size < _HEAD.size:
        _xclbin_invalid(f"has {size} bytes, less than its header")
    file.seek(0)
    fields = _HEAD.unpack(exactly(file, _HEAD.size))
    length, major, mode = fields[5], fields[9], fields[11]
    interface, own, count = fields[13], fields[15], fields[17]
    if length != size:
        _xclbin_invalid(f"claims {length} bytes, but has {size}")
    if major != 2:
        _xclbin_invalid(f"has version {major}; only version 2 is supported")
    if mode not in _MODES:
        _xclbin_invalid(f"has mode {mode}, which does not program a card")
    if not 1 <= count <= _MOST_SECTIONS:
        _xclbin_invalid(f"has {count} sections; it may have 1 to {_MOST_SECTIONS}")
    _check_sections(exactly(file, count * _SECTION.size), size)
    return Header(
        ImageFormat.XCLBIN,
        payload_offset=0,
        payload_size=size,
        interface_id=str(uuid.UUID(bytes=interface)) if any(interface) else None,
        # The UUID of the loaded xclbin in XRT (xclbinuuid).
        function_ids=(str(uuid.UUID(bytes=own)),) if any(own) else (),
    )


def _check_sections(table: bytes, size: int) -> None:
    bitstreams = 0
    for kind, _name, offset, length in _SECTION.iter_unpack(table):
        if kind in _OF_A_SHELL:
            _xclbin_invalid(
                f"has a section {_OF_A_SHELL[kind]}: it is for a card's flash"
            )
        if offset + length > size:
            _xclbin_invalid(
                f"has a section of kind {kind} that ends beyond the end of the file"
            )
        if kind in (_BITSTREAM, _PDI, _PARTIAL_PDI) and length:
            bitstreams += 1
    if not bitstreams:
        _xclbin_invalid("contains no bitstream")


def _xclbin_invalid(what: str) -> NoReturn:
    raise exception.ImageUnusable(f"the xclbin {what}")


_MAGIC: Final = 16
_LEGACY_GBS: Final = struct.pack("<I", MAGIC_NUMBER)
#: Files that are mistaken for bitstreams, and that no hardware accepts.
_NO_BITSTREAMS: Final = (
    (
        _LEGACY_GBS,
        "a green bitstream without metadata",
        "package it with OPAE's packager",
    ),
    (b"xclbin", "an xclbin of an old format", "migrate it with xclbinutil"),
    (
        b"\x7fELF",
        "an ELF file, such as an .aocx",
        "extract the bitstream and upload it",
    ),
    (b"PK\x03\x04", "a zip archive", "extract the bitstream and upload it"),
    (b"\x1f\x8b", "compressed by gzip", "upload it uncompressed"),
    (b"\xfd7zXZ\0", "compressed by xz", "upload it uncompressed"),
    (b"QFI\xfb", "a disk image of QEMU's (qcow2)", ""),
    (b"KDMV", "a disk image of VMware's (VMDK)", ""),
)

#: buffer_size of ``struct dfl_fpga_fme_port_pr`` has 32 bits.
_LARGEST_PAYLOAD: Final = 2**32 - 4


def read_header(file: BinaryIO, size: int) -> Header:
    """Read the header of a bitstream file.

    :param file: opened for reading; it is read from its start.
    :param size: the size of the file in bytes.
    :raises ImageUnusable: it is empty or truncated, contradicts itself, or has a
        format that no hardware accepts.
    """
    if size <= 0:
        raise exception.ImageUnusable("the file is empty")
    file.seek(0)
    magic = exactly(file, min(size, _MAGIC))
    if magic == GUID:
        return read_gbs(file, size)
    if magic.startswith(MAGIC):
        return read_xclbin(file, size)
    for start, name, hint in _NO_BITSTREAMS:
        if magic.startswith(start):
            raise exception.ImageUnusable(f"the file is {name}", hint=hint)
    return Header(ImageFormat.RAW, payload_offset=0, payload_size=size)


def check(header: Header, image: Image, region: Region) -> None:
    """Check a file's header against its image's properties and a region.

    :raises RegionUnusable: the region has no interface ID.
    :raises ImageUnusable: MISMATCH: the file is built for another region, or does
        not state its region. INVALID: it contradicts the properties, or its payload
        is empty, too large, or no multiple of a word.
    """
    _check_interface(header, image, region, required_interface(region))
    _check_functions(header, image)
    _check_payload(header, image)


def required_interface(region: Region) -> str:
    """Return the interface ID that a bitstream for a region has to have.

    :raises RegionUnusable: the region has no interface ID.
    """
    if region.interface_id is None:
        raise exception.RegionUnusable(
            f"{region} has no interface id, so that no bitstream can be matched to it",
            reason=exception.RegionReason.NOT_PROGRAMMABLE,
        )
    return region.interface_id


def _check_interface(header: Header, image: Image, region: Region, wanted: str) -> None:
    claimed = properties.region_id(image)
    if header.interface_id is None:
        if claimed is None:
            raise exception.ImageUnusable(
                f"image {properties.title(image)} does not state its region: "
                "neither its file does, nor a property "
                f"{properties.REGION_NAMES[0]}",
                hint=f"set the property to {wanted} if the image is built for {region}",
                reason=exception.ImageReason.MISMATCH,
            )
    elif claimed not in (None, header.interface_id):
        raise exception.ImageUnusable(
            f"the file of image {properties.title(image)} states the "
            f"region {header.interface_id}, but its properties state "
            f"{exception.show(claimed)}"
        )
    built_for = header.interface_id or claimed
    if built_for != wanted:
        raise exception.ImageUnusable(
            f"image {properties.title(image)} is built for "
            f"{exception.show(built_for)}, but {region} requires {wanted}",
            reason=exception.ImageReason.MISMATCH,
        )


def _check_functions(header: Header, image: Image) -> None:
    if not header.function_ids:
        return
    for claimed in properties.function_ids(image):
        # The header has UUIDs only: any other ID is a name of the operator's.
        if canonical_uuid(claimed) and claimed not in header.function_ids:
            raise exception.ImageUnusable(
                f"the file of image {properties.title(image)} implements "
                f"{', '.join(header.function_ids)}, but its properties state "
                f"{exception.show(claimed)}"
            )


def _check_payload(header: Header, image: Image) -> None:
    title, size = properties.title(image), header.payload_size
    if size <= 0:
        raise exception.ImageUnusable(f"image {title} has an empty payload")
    # The following limits are DFL's (drivers/fpga/dfl-fme-pr.c); the vendor's tool
    # checks the sections of an xclbin.
    if header.format is ImageFormat.XCLBIN:
        return
    if size % 4:
        # The kernel would fill up the last word with its own memory: the hardware
        # would get unverified bytes.
        raise exception.ImageUnusable(
            f"the payload of image {title} has {size} bytes, not a multiple of 4",
            hint="it is truncated, or was packaged from a truncated file",
        )
    if size > _LARGEST_PAYLOAD:
        raise exception.ImageUnusable(
            f"the payload of image {title} has {size} bytes; the kernel "
            f"accepts at most {_LARGEST_PAYLOAD}"
        )
