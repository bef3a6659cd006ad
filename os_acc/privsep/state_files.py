# SPDX-License-Identifier: Apache-2.0

"""Small files that tell a later call of the helper what an earlier one has done."""

from __future__ import annotations

import errno
import os
from typing import Final

#: Directory of these files and of the locks: owned by root, removed at reboot.
LOCKS: Final = "run/os_acc"
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


def create(path: str, text: str) -> None:
    """Create a file; a killed worker leaves it empty, or whole.

    :raises OSError: EEXIST: it exists; ENOSPC: there is no space for it.
    """
    _write(path, text, os.O_EXCL)


def replace(path: str, text: str, *, durable: bool = False) -> None:
    """Create or replace a file; a killed worker leaves the old one, or the new one.

    The caller holds the lock of the device.

    :param durable: also after a loss of power; ``/run`` is empty then anyway.
    :raises OSError: it cannot be written, for lack of space for example.
    """
    fresh = f"{path}.new"
    _write(fresh, text, os.O_TRUNC, durable=durable)
    os.rename(fresh, path)
    if durable:
        directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _write(path: str, text: str, flag: int, *, durable: bool = False) -> None:
    data = text.encode("ascii")
    fd = os.open(path, _FLAGS | flag, 0o600)
    try:
        if os.write(fd, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)
