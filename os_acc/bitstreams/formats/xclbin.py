# SPDX-License-Identifier: Apache-2.0

"""xclbin, the container of AMD/Xilinx (``struct axlf``).

A fixed head, a table of sections, the sections. XRT:
src/runtime_src/core/include/xclbin.h, all little endian. ``xclbinutil`` takes
``m_interface_uuid`` from the partition's metadata; it is zero in files for
shells of one stage. The whole file goes to the vendor's tool.
"""

from __future__ import annotations

import struct
import uuid
from typing import BinaryIO, Final, NoReturn

from os_acc import exception
from os_acc.bitstreams.formats.reader import exactly
from os_acc.objects.image import Header, ImageFormat

MAGIC: Final = b"xclbin2\0"

_HEAD: Final = struct.Struct(
    "<8s"  # m_magic
    "i28s256sQ"  # m_signature_length, reserved, m_keyBlock, m_uniqueId
    "QQQHBBHH"  # m_length, two time stamps, version, m_mode, m_actionMask
    "16s64s16s16s"  # m_interface_uuid, m_platformVBNV, uuid, m_debug_bin
    "I4x"  # m_numSections
)
_SECTION: Final = struct.Struct("<I16s4xQQ")

# XRT takes 65536; real files have 20, and what is read here is bounded.
_MOST_SECTIONS: Final = 512
# XCLBIN_FLAT, XCLBIN_PR: the others are for emulation, or the card's start.
_MODES: Final = frozenset({0, 1})
_BITSTREAM: Final = 0
_PDI: Final = 18
_PARTIAL_PDI: Final = 19
#: Sections that are written to the card's flash: a shell, no bitstream.
_OF_A_SHELL: Final = {12: "MCS", 13: "BMC", 24: "ASK_FLASH"}


def read(file: BinaryIO, size: int) -> Header:
    """Read the header from the file's beginning.

    :param size: bytes that the file has.
    :raises ImageInvalid: it contradicts itself, holds no bitstream, or is one
        for a card's flash.
    """
    if size < _HEAD.size:
        _refuse(f"has {size} bytes, less than its head")
    file.seek(0)
    fields = _HEAD.unpack(exactly(file, _HEAD.size))
    length, major, mode = fields[5], fields[9], fields[11]
    interface, own, count = fields[13], fields[15], fields[17]
    if length != size:
        _refuse(f"claims {length} bytes, and has {size}")
    if major != 2:
        _refuse(f"is of version {major}; 2 is known")
    if mode not in _MODES:
        _refuse(f"is of mode {mode}, not one to program a card with")
    if not 1 <= count <= _MOST_SECTIONS:
        _refuse(f"has {count} sections; it may have 1 to {_MOST_SECTIONS}")
    _check_sections(exactly(file, count * _SECTION.size), size)
    return Header(
        ImageFormat.XCLBIN,
        payload_offset=0,
        payload_size=size,
        interface_id=str(uuid.UUID(bytes=interface)) if any(interface) else None,
        # What XRT names the loaded xclbin by (xclbinuuid).
        function_ids=(str(uuid.UUID(bytes=own)),) if any(own) else (),
    )


def _check_sections(table: bytes, size: int) -> None:
    bitstreams = 0
    for kind, _name, offset, length in _SECTION.iter_unpack(table):
        if kind in _OF_A_SHELL:
            _refuse(f"has a section {_OF_A_SHELL[kind]}: it is for a card's flash")
        if offset + length > size:
            _refuse(f"has a section of kind {kind} that ends behind the file")
        if kind in (_BITSTREAM, _PDI, _PARTIAL_PDI) and length:
            bitstreams += 1
    if not bitstreams:
        _refuse("has no bitstream in it")


def _refuse(what: str) -> NoReturn:
    raise exception.ImageInvalid(f"the xclbin {what}")
