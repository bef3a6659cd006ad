# SPDX-License-Identifier: Apache-2.0

"""Small files beside the store: replaced, and read by commands of another user."""

from __future__ import annotations

import os


def replace(path: str, text: str, *, durable: bool = False) -> None:
    """Create or replace a file; after a crash it is the old one, or the new one.

    :param durable: also after a loss of power, once its directory is synchronised.
    :raises OSError: it cannot be written.
    """
    fresh = f"{path}.new"
    with open(fresh, "w", encoding="utf-8") as file:
        file.write(text)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(fresh, path)


def read(path: str, longest: int) -> bytes:
    """Return the beginning of a file, this many bytes at most.

    The owner of the directory may have replaced the file; root reads it, too.

    :raises OSError: it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        return os.read(descriptor, longest)
    finally:
        os.close(descriptor)


def sync_directory(directory: str) -> None:
    """Make the names in a directory durable (fsync(2))."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
