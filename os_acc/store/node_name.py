# SPDX-License-Identifier: Apache-2.0

"""The name that a service gave its node, for commands on the same host.

``[os_acc] node_name`` takes precedence. Without it a command would use the host name,
and derive other providers from it than a service with Nova's name of the node.
"""

from __future__ import annotations

import os

from os_acc.store import errors
from os_acc.store.database import sync_directory

_FILE = "node_name"
#: The longest name of a provider in Placement, in bytes of UTF-8.
_LONGEST = 4 * 200


def record(state_path: str, name: str | None) -> None:
    """Record the name; None removes the record.

    :raises StateUnavailable: the state directory cannot be written to.
    """
    if recorded(state_path) == name:
        return
    path = os.path.join(state_path, _FILE)
    try:
        if name is None:
            os.unlink(path)
        else:
            _write(path, name)
        sync_directory(state_path)
    except OSError as error:
        raise errors.from_os_error(error, path) from error


def _write(path: str, name: str) -> None:
    fresh = f"{path}.new"
    with open(fresh, "w", encoding="utf-8") as file:
        file.write(name)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)


def recorded(state_path: str) -> str | None:
    """Return the recorded name; None: none is recorded, or it cannot be read."""
    path = os.path.join(state_path, _FILE)
    try:
        # The owner of the directory may have replaced the file; root reads it, too.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            name = os.read(descriptor, _LONGEST + 1).decode()
        finally:
            os.close(descriptor)
    except (OSError, UnicodeDecodeError):
        return None
    return name if name.isprintable() and 0 < len(name.encode()) <= _LONGEST else None
