# SPDX-License-Identifier: Apache-2.0

"""The migrations of a server, and whether its own leases or theirs have its data.

After a resize on one host both have leases there. Nova tells the driver neither that a
resize has failed after the move of the disks, nor that a confirmation has failed before
or in the driver, and deletes the allocation of the migration in each case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from nova import objects

from os_acc import exception
from os_acc.nova.guest_devices import GuestDevices
from os_acc.objects.api import AcceleratorEntry

#: The state of an accelerator that is ready for its guest.
BOUND: Final = "Bound"


def migrations(context: Any, instance: Any) -> list[Any]:
    """Return the migrations of a server."""
    filters = {"instance_uuid": instance.uuid}
    return list(objects.MigrationList.get_by_filters(context, filters))


def units(entries: Iterable[AcceleratorEntry]) -> Counter[str]:
    """Return the number of accelerators that are ready, by provider."""
    return Counter(each["device_rp_uuid"] for each in entries if each["state"] == BOUND)


def is_rollback_due(instance: Any, migration: Any, has_own: bool) -> bool:
    """Return whether a server is to get the leases of a migration with an allocation.

    Nova does not repeat the rollback of a move that a restart has interrupted, and does
    none if a revert fails after the guest has ended.

    :param has_own: whether the server has leases here.
    """
    is_decided = migration.status not in ("finished", "confirming", "reverting")
    is_old = instance.flavor.id == migration.old_instance_type_id
    is_source = migration.source_compute == instance.host
    return is_source and is_decided and (is_old or not has_own)


def check_stopped(instance: Any, runs: bool) -> None:
    """Check that no guest has the devices of a server that are to be released.

    :raises Conflict: it runs with them.
    """
    if runs:
        raise exception.Conflict(
            f"the guest of instance {instance.uuid} runs with accelerators of a resize "
            "that has failed",
            reason=exception.ConflictReason.CONSUMER,
            hint="stop the server: it starts with those that it had before",
        )


def has_moved(
    instance: Any,
    migration: Any,
    defined: GuestDevices,
    own: GuestDevices,
    its: GuestDevices,
) -> bool:
    """Return whether the data of a server are in its own devices, not a migration's.

    The guest of a resize that fails may be defined with the server's own devices, and
    not have run. The definition may name neither: it is lost, or an earlier one.

    :param defined: the devices in the definition of the guest.
    :param own: those of the leases of the server; as many as those of the migration.
    :param its: those of the leases of the migration.
    """
    is_elsewhere = migration.source_compute != migration.dest_compute
    if is_elsewhere or migration.status == "confirmed":
        # The server has come back since, or its old leases could not be released.
        return True
    new = instance.new_flavor
    # Nova removes it if the resize is confirmed, also in vain, or reverted.
    is_undecided = new is not None and new.id == migration.new_instance_type_id
    # Nova resets it if the guest cannot be created, or in a revert.
    is_reset = instance.flavor.id == migration.old_instance_type_id
    if defined & own:
        return not (is_undecided and is_reset)
    return not (is_undecided or is_reset or defined & its)
