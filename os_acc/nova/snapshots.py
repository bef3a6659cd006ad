# SPDX-License-Identifier: Apache-2.0

"""Snapshots of servers that had accelerators.

Such a snapshot may depend on a state of the accelerators; the specification excludes
"booting off a snapshot". A server may boot its own: unshelved, or rebuilt.
"""

from __future__ import annotations

from typing import Any, Final

from nova import exception as nova_exception

from os_acc.nova import conversion

#: Nova copies keys with this prefix from the image, and to snapshots of the server.
_SNAPSHOT_OF: Final = "image_os_acc_server"


def check(instance: Any) -> None:
    """Refuse the snapshot of another server to a server with accelerators.

    :raises ImageUnacceptable: the image is such a snapshot.
    """
    server = instance.system_metadata.get(_SNAPSHOT_OF)
    if server in (None, instance.uuid):
        return
    if conversion.may_request_accelerators(instance.flavor):
        raise nova_exception.ImageUnacceptable(
            image_id=instance.image_ref,
            reason=f"it is a snapshot of server {server}, which had accelerators",
        )


def mark(instance: Any) -> None:
    """Let snapshots of a server carry its UUID in ``os_acc_server``."""
    if instance.system_metadata.get(_SNAPSHOT_OF) != instance.uuid:
        instance.system_metadata[_SNAPSHOT_OF] = instance.uuid
        instance.save()
