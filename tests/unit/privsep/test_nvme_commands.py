# SPDX-License-Identifier: Apache-2.0

"""The admin commands of the privileged side, and the lists that it reads."""

import errno
import struct

import pytest

from os_acc.objects.nvme import NvmeNamespace, ReadValue, SanitizeAction
from os_acc.objects.nvme_erasure import EraseMethod
from os_acc.privsep import kernel
from os_acc.privsep.nvme.commands import AdminQueue


class PagedQueue(AdminQueue):
    """A controller whose lists have several pages."""

    def _identify(self, cdw10: int, namespace: int = 0) -> bytes:
        if cdw10 & 0xFF == 0x15:
            first = cdw10 >> 16
            numbers = range(first, min(first + 127, 300))
            entries = (struct.pack("<HHB3xH22x", each, 0, 1, each) for each in numbers)
            page = bytes([len(numbers)]).ljust(32, b"\0") + b"".join(entries)
        else:
            listed = range(namespace + 1, min(namespace + 1025, 1501))
            page = struct.pack(f"<{len(listed)}I", *listed)
        return page.ljust(4096, b"\0")


def test_lists_are_read_to_their_end():
    queue = PagedQueue("/dev/nvme0", "240:0")
    assert queue.allocated() == tuple(range(1, 1501))
    assert [each.number for each in queue.secondaries()] == [*range(300)]


def test_a_list_without_end_is_refused(monkeypatch):
    page = struct.pack("<1024I", *range(1, 1025))
    full = bytes([127]).ljust(4096, b"\0")
    most = struct.pack("<2048H", 2047, *range(2047))
    queue = AdminQueue("/dev/nvme0", "240:0")
    for answer, ask in (
        (page, queue.active),
        (full, queue.secondaries),
        (most, queue.controllers),
    ):
        monkeypatch.setattr(AdminQueue, "_identify", lambda *_args, a=answer: a)
        with pytest.raises(OSError, match="lists too many") as caught:
            ask()
        assert caught.value.errno == errno.EOVERFLOW


def test_a_command_reaches_one_namespace_for_as_long_as_it_takes(monkeypatch):
    sent: list[tuple[int, ...]] = []

    def nvme_admin(
        _self: object, _fd: int, command: object, size: int
    ) -> tuple[int, bytes]:
        fields = struct.unpack("=BBHIIIQQIIIIIIIIII", command(0))  # type: ignore[operator]
        sent.append((fields[0], fields[3], fields[10], fields[16]))
        return 0, bytes(size)

    monkeypatch.setattr(type(kernel.current), "nvme_admin", nvme_admin)
    queue = AdminQueue("/dev/nvme0", "240:0", fd=0)
    namespace = NvmeNamespace(3, 8, 512, 0x121, False, None, ReadValue.ZEROES)
    queue.format(namespace, EraseMethod.FORMAT.secure_erase)
    queue.format(namespace, EraseMethod.FORMAT_CRYPTO.secure_erase)
    queue.sanitize(SanitizeAction.BLOCK_ERASE)
    queue.sanitize(SanitizeAction.OVERWRITE)
    day = 24 * 3600 * 1000
    assert sent == [
        # Format NVM: LBAF 1, PI 1, PIL 1 as before; SES 1 and 2.
        (0x80, 3, 0x121 | 1 << 9, day),
        (0x80, 3, 0x121 | 2 << 9, day),
        # Sanitize: SANACT, and OWPASS 1.
        (0x84, 0, 2, 60_000),
        (0x84, 0, 3 | 1 << 4, 60_000),
    ]
