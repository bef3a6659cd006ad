# SPDX-License-Identifier: Apache-2.0

"""The disk of a namespace, claimed while it is erased."""

from __future__ import annotations

import dataclasses
import errno
import mmap
import os
import struct

from os_acc.objects.nvme import NvmeNamespace, ReadValue
from os_acc.objects.nvme_erasure import EraseMethod
from os_acc.privsep import kernel

# include/uapi/linux/fs.h: _IO(0x12, 95), _IO(0x12, 97) and _IO(0x12, 119).
_RESCAN_PARTITIONS, _FLUSH_BUFFERS, _DISCARD = 0x125F, 0x1261, 0x1277
_RANGE = struct.Struct("=QQ")
# Samples of a disk, evenly spread, and the size of each in bytes.
_SAMPLES, _SAMPLE = 64, 4096


@dataclasses.dataclass(frozen=True, slots=True)
class HeldDisk:
    """A claimed disk.

    :ivar fd: its descriptor, opened with O_EXCL.
    :ivar before: samples of what it held; None where it could not be read.
    """

    fd: int
    namespace: NvmeNamespace
    before: tuple[bytes | None, ...]

    @classmethod
    def of(cls, fd: int, namespace: NvmeNamespace) -> HeldDisk:
        """Sample a disk before it is erased."""
        return cls(fd, namespace, _samples(fd, namespace))

    def deallocate(self) -> None:
        """Deallocate all blocks (BLKDISCARD, drivers/nvme/host/core.c).

        :raises OSError: the kernel or the controller refused it.
        """
        size = self.namespace.blocks * self.namespace.block_size
        kernel.current.ioctl(self.fd, _DISCARD, _RANGE.pack(0, size))

    def verify(self, method: EraseMethod) -> None:
        """Check that no sample holds what it held, and the value of erased blocks.

        A cryptographic erase leaves any contents, and a block may become unreadable.

        :raises OSError: EIO: a sample shows data.
        """
        expected = _expected(self.namespace.read_value, method)
        for before, after in zip(
            self.before, _samples(self.fd, self.namespace), strict=True
        ):
            if after is None and method is EraseMethod.FORMAT_CRYPTO:
                continue
            same = before == after and before is not None and not _is_constant(before)
            if after is None or same or not _fits(after, expected):
                what = "cannot be read" if after is None else "still shows data"
                text = f"{what} after {method}"
                raise OSError(errno.EIO, text, f"namespace {self.namespace.number}")


def forget_partitions(fd: int) -> None:
    """Drop cached data of a claimed disk, and read its partition table, now gone.

    :raises OSError: the kernel refused to drop the data.
    """
    kernel.current.ioctl(fd, _FLUSH_BUFFERS, b"")
    try:
        kernel.current.ioctl(fd, _RESCAN_PARTITIONS, b"")
    except OSError as error:
        # A disk without partitions (GENHD_FL_NO_PART), or a process that still has
        # one of them open: it reads what is erased.
        if error.errno not in (errno.EINVAL, errno.EBUSY):
            raise


def _expected(value: ReadValue, method: EraseMethod) -> frozenset[int]:
    """Return the bytes that an erased block may consist of; empty: any.

    Format NVM with a secure erase may fill the blocks with zeroes or ones (Base
    Specification 2.0, section 5.14, SES).
    """
    if method is EraseMethod.FORMAT_CRYPTO or value is ReadValue.UNKNOWN:
        return frozenset()
    if method is EraseMethod.DEALLOCATE:
        return frozenset({0 if value is ReadValue.ZEROES else 0xFF})
    return frozenset({0, 0xFF})


def _fits(data: bytes, expected: frozenset[int]) -> bool:
    return not expected or (_is_constant(data) and data[0] in expected)


def _is_constant(data: bytes) -> bool:
    return data.count(data[:1]) == len(data)


def _samples(fd: int, namespace: NvmeNamespace) -> tuple[bytes | None, ...]:
    sample = max(_SAMPLE, namespace.block_size)
    size = namespace.blocks * namespace.block_size
    last = max(0, size - sample) // sample
    places = sorted({last * at // (_SAMPLES - 1) for at in range(_SAMPLES)})
    # The descriptor bypasses the page cache, which may have old data: the buffer has
    # to be aligned (open(2), O_DIRECT).
    with mmap.mmap(-1, sample) as buffer:
        return tuple(_read(fd, at * sample, buffer) for at in places)


def _read(fd: int, offset: int, buffer: mmap.mmap) -> bytes | None:
    try:
        count = os.preadv(fd, [buffer], offset)
    except OSError:
        return None
    return buffer[:count] or None
