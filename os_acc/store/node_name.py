# SPDX-License-Identifier: Apache-2.0

"""The name that a service gave its node, for commands on the same host.

``[os_acc] node_name`` takes precedence. Without it a command would use the host name,
and derive other providers from it than a service with Nova's name of the node.
"""

from __future__ import annotations

import os

from os_acc.store import errors, small_files

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
            small_files.sync_directory(state_path)
        else:
            small_files.replace(path, name.encode(), durable=True)
    except OSError as error:
        raise errors.from_os_error(error, path) from error


def recorded(state_path: str) -> str | None:
    """Return the recorded name; None: none is recorded, or it cannot be read."""
    path = os.path.join(state_path, _FILE)
    try:
        name = small_files.read(path, _LONGEST + 1).decode()
    except (OSError, UnicodeDecodeError):
        return None
    return name if name.isprintable() and 0 < len(name.encode()) <= _LONGEST else None
