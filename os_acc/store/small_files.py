# SPDX-License-Identifier: Apache-2.0

"""Files of the state directory: replaced atomically, and read by other users."""

from __future__ import annotations

import contextlib
import os
import stat


def replace(
    path: str, content: bytes, *, durable: bool = False, mode: int | None = None
) -> None:
    """Create or replace a file; after a crash it is the old one, or the new one.

    :param durable: also after a loss of power: the content reaches the disk before
        the name, and both before this returns.
    :param mode: the permissions of a first file, less those of the umask; it keeps its
        permissions and its owner. None: they are those of the last writer.
    :raises OSError: it cannot be written; only the last sync may have left it replaced.
    """
    fresh = f"{path}.new"
    # The rest of a write that was interrupted. A link is not followed.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(fresh)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    descriptor = os.open(fresh, flags, 0o666 if mode is None else mode)
    try:
        with open(descriptor, "wb") as file:
            if mode is not None:
                _keep_owner(file.fileno(), path)
            file.write(content)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError:
        # A file that does not fit is in the way of others.
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        raise
    if durable:
        sync_directory(os.path.dirname(path))


def _keep_owner(descriptor: int, path: str) -> None:
    """Give a new file the owner and the permissions of the one that it replaces."""
    with contextlib.suppress(FileNotFoundError):
        old = os.stat(path)
        os.fchown(descriptor, old.st_uid, old.st_gid)
        os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


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
