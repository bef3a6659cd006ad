# SPDX-License-Identifier: Apache-2.0

"""The disk of a guest whose only program writes to its NVMe drive, and then halts.

The program is the first sector: the firmware (SeaBIOS) has a driver for NVMe, and the
program calls it as for any disk (INT 13h, AH=43h, IBM/MS INT 13 Extensions). The drive
is the second disk, 81h, after the one that the guest boots from.
"""

from __future__ import annotations

import struct

#: A block of text, as a guest writes it.
DATA = b"data of a guest."
#: The size of a namespace, and of a sector, in bytes.
MEDIUM, SECTOR = 64 << 20, 512
#: The address of the byte that the program sets in the end, and its value after
#: success; any other one but 0 is an error of the firmware.
STATUS, WRITTEN = 0x600, 1

_DATA, _REQUESTS, _BUFFER = 0x40, 0x50, 0x8000
_SECTORS = 8
#: The firmware boots from no smaller disk.
_SIZE = 8 << 20
_PROGRAM = bytes.fromhex(
    "31c0 8ed8 8ec0 fc"  # xor ax,ax; mov ds,ax; mov es,ax; cld
    "bf0080 bb0001"  # mov di,BUFFER; mov bx,SECTORS*SECTOR/16
    "be407c b90800 f3a5"  # fill: mov si,DATA; mov cx,8; rep movsw
    "4b 75f5"  # dec bx; jnz fill
    "be507c"  # mov si,REQUESTS
    "b281 b80043 cd13 720a"  # next: mov dl,81h; mov ax,4300h; int 13h; jc end
    "83c610 803c00 75ef"  # add si,16; cmp byte [si],0; jne next
    "b401"  # mov ah,WRITTEN
    "88260006"  # end: mov [STATUS],ah
    "f4 ebfd"  # halt: hlt; jmp halt
)


def disk() -> bytes:
    """Return the contents of the disk, to boot from."""
    sector = bytearray(_PROGRAM.ljust(SECTOR - 2, b"\0") + b"\x55\xaa")
    sector[_DATA : _DATA + len(DATA)] = DATA
    last = MEDIUM // SECTOR - _SECTORS
    for number, block in enumerate((0, last // 2, last)):
        # Size, reserved, sectors, offset and segment of the buffer, first sector.
        request = struct.pack("<BBHHHQ", 16, 0, _SECTORS, _BUFFER, 0, block)
        struct.pack_into("16s", sector, _REQUESTS + 16 * number, request)
    return bytes(sector).ljust(_SIZE, b"\0")
