# SPDX-License-Identifier: Apache-2.0

"""The samples of a disk prove that it is erased, or that it is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from os_acc.objects.nvme import NvmeNamespace, ReadValue
from os_acc.objects.nvme_erasure import EraseMethod
from os_acc.privsep.nvme.disks import HeldDisk

SIZE = 1 << 16
ZEROES = NvmeNamespace(1, SIZE // 512, 512, 0, False, None, ReadValue.ZEROES)


def verify(
    path: Path, method: EraseMethod, before: bytes, after: bytes, size: int = SIZE
) -> None:
    """Verify the erasure of a disk with these contents."""
    path.write_bytes(before)
    fd = os.open(path, os.O_RDONLY)
    try:
        disk = HeldDisk.of(fd, ZEROES)
        path.write_bytes(after[:size])
        disk.verify(method)
    finally:
        os.close(fd)


@pytest.mark.parametrize("method", [EraseMethod.FORMAT, EraseMethod.DEALLOCATE])
def test_data_in_the_last_block_is_found(tmp_path: Path, method: EraseMethod) -> None:
    data = bytes(SIZE - 4096) + b"data of a guest." * 256
    with pytest.raises(OSError, match="still shows data"):
        verify(tmp_path / "disk", method, data, data)


def test_a_deallocated_block_reads_as_the_namespace_states(tmp_path: Path) -> None:
    data, ones = os.urandom(SIZE), b"\xff" * SIZE
    verify(tmp_path / "disk", EraseMethod.DEALLOCATE, data, bytes(SIZE))
    # Format NVM may fill with ones as well.
    verify(tmp_path / "disk", EraseMethod.FORMAT, data, ones)
    with pytest.raises(OSError, match="still shows data"):
        verify(tmp_path / "disk", EraseMethod.DEALLOCATE, data, ones)


def test_a_block_that_cannot_be_read_proves_only_a_cryptographic_erase(
    tmp_path: Path,
) -> None:
    data, half = os.urandom(SIZE), SIZE // 2
    verify(tmp_path / "disk", EraseMethod.FORMAT_CRYPTO, data, os.urandom(SIZE), half)
    with pytest.raises(OSError, match="cannot be read"):
        verify(tmp_path / "disk", EraseMethod.FORMAT, data, bytes(SIZE), half)
