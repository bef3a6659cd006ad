# SPDX-License-Identifier: Apache-2.0

"""Create the mediated device of a lease, or tell that no capacity is left for it."""

from __future__ import annotations

from os_acc import exception
from os_acc.helper import client
from os_acc.host import mdev
from os_acc.objects.lease import Lease
from os_acc.objects.mdev import MdevSlot, MdevType


def create(
    root: str, helper: client.Helper, lease: Lease, slot: MdevSlot, deadline: float
) -> None:
    """Create the mediated device of a lease.

    The scan has found capacity for it, which another tool may have used since. The
    error number of a parent without capacity is its driver's own: ENOSPC (mtty), EUSERS
    (mdpy).

    :raises HostStepFailed: NO_CAPACITY: its parent has no capacity left.
    :raises HostError: the host refused it.
    """
    try:
        helper.create_mdev(lease, slot, deadline)
    except exception.HostStepFailed as error:
        is_refused = error.reason is exception.StepReason.REFUSED
        if not is_refused or _has_capacity(root, slot.type):
            raise
        raise exception.HostStepFailed(
            f"cannot create {slot}: {slot.type.parent} has no capacity left for "
            f"{slot.type.name}",
            address=str(slot),
            errno=error.errno,
            reason=exception.StepReason.NO_CAPACITY,
        ) from error


def _has_capacity(root: str, kind: MdevType) -> bool:
    """Return whether a parent has capacity for a type; also if it cannot be read."""
    try:
        found = mdev.read_type(root, kind)
    except exception.HostStepFailed:
        return True
    return found is None or found.available > 0
