# SPDX-License-Identifier: Apache-2.0

"""Create and remove mediated devices (drivers/vfio/mdev).

A call locks the slot: calls for other slots of the parent go on meanwhile, each with
an epoch of its own. The UUID of a mediated device is that of its lease.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable

from os_acc import exception, privsep
from os_acc.objects.mdev import MdevSlot, MdevType
from os_acc.privsep import functions, kernel, locks, record, rootconf, worker
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.privsep.record import DeviceRecord, FunctionUse
from os_acc.privsep.rootconf import RootConf

_HIGHEST_SLOT = 10**9 - 1


@privsep.base.entrypoint
def create(
    parent: str,
    type_name: str,
    number: int,
    uuid: str,
    epoch: int,
    milliseconds: int,
    releaser: str = "",
    node: str = "",
) -> tuple[str, int, str, str]:
    """Create a mediated device of a type; do nothing if it exists already.

    Root's configuration has to name the type on this parent. If the slot is on record
    for another lease, or its record is damaged, nothing is changed.

    :param number: of the slot.
    :param uuid: canonical UUID of the lease and of its mediated device.
    :param releaser: the plugin that has to release the slot, which is recorded first;
        '' for none.
    :param node: the compute node whose lease it is; '' if unknown.
    """
    slot = _parse(parent, type_name, number, uuid, epoch, milliseconds)
    if (
        slot is None
        or not functions.is_driver_name(releaser)
        or not functions.is_text(node)
    ):
        return CallResult(Outcome.INVALID, errno.EINVAL)
    root = rootconf.current()
    return _run(
        slot, epoch, milliseconds, lambda: _create(slot, uuid, root, releaser, node)
    )


@privsep.base.entrypoint
def remove(
    parent: str,
    type_name: str,
    number: int,
    uuid: str,
    epoch: int,
    milliseconds: int,
    is_owed: bool = False,
) -> tuple[str, int, str, str]:
    """Remove a lease's mediated device; do nothing if it does not exist.

    One of another type is not removed. One that left root's configuration is.

    :param number: as for :func:`create`, as is ``uuid``.
    :param is_owed: whether a plugin has to release the slot afterwards: its record, if
        any, stays until a call without it.
    """
    slot = _parse(parent, type_name, number, uuid, epoch, milliseconds)
    if slot is None or type(is_owed) is not bool:
        return CallResult(Outcome.INVALID, errno.EINVAL)
    refused = locks.refusal(slot)
    # The kernel removes the mediated devices of a parent that goes. Without a lock
    # file, this helper has created none since the host was booted.
    if refused and (refused.outcome == Outcome.GONE or _type_of(uuid) is None):
        return CallResult(Outcome.OK)
    return _run(slot, epoch, milliseconds, lambda: _remove(slot, uuid, is_owed=is_owed))


@privsep.base.entrypoint
def repair_record(
    parent: str,
    type_name: str,
    number: int,
    uuid: str,
    epoch: int,
    milliseconds: int,
    releaser: str = "",
    node: str = "",
) -> tuple[str, int, str, str]:
    """Replace the damaged record of a slot by one for a new lease.

    Nothing else is changed: a missing record stays missing, and a sound one as it is.

    :param number: as for :func:`create`, as is ``uuid``.
    :param releaser: as for :func:`create`, as is ``node``. Without a releaser, or
        without the parent, the damaged record is removed.
    """
    slot = _parse(parent, type_name, number, uuid, epoch, milliseconds)
    if (
        slot is None
        or not functions.is_driver_name(releaser)
        or not functions.is_text(node)
    ):
        return CallResult(Outcome.INVALID, errno.EINVAL)
    if not record.exists(slot):
        return CallResult(Outcome.OK)
    return _run(slot, epoch, milliseconds, lambda: _repair(slot, uuid, releaser, node))


def has_parent(kind: MdevType) -> bool:
    """Return whether the parent of a type is there."""
    return os.path.isdir(locks.parent_directory(kind))


def record_slot(slot: MdevSlot, lease: str, releaser: str, node: str = "") -> None:
    """Record that a lease has a slot until a plugin has released it.

    The record permits the steps that return the device, and no other lease gets the
    slot. A reboot removes it.

    :raises OSError: the parent is gone, or the record cannot be written.
    """
    identity = record.identity_of(slot)
    if identity is None:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), "identity")
    taken = DeviceRecord(
        *(lease, slot, identity, "", "", FunctionUse.GUEST),
        releaser=releaser,
        node=node,
    )
    record.write(taken)


def holder_of(slot: MdevSlot) -> str | None:
    """Return the lease that a slot is recorded for, or None.

    :returns: :data:`.record.UNREADABLE`: the record is damaged.
    """
    identity = record.identity_of(slot)
    return None if identity is None else record.lease_of(slot, identity)


def claimed_by_another(slot: MdevSlot, lease: str) -> CallResult | None:
    """Return the refusal if a slot is on record for another lease, or None."""
    found = holder_of(slot)
    if found in (None, lease):
        return None
    return CallResult(Outcome.CLAIMED, errno.EBUSY, str(slot), found)


def directory(uuid: str) -> str:
    """Return the directory of a mediated device."""
    return kernel.current.path("sys/bus/mdev/devices", uuid)


def group(uuid: str) -> int | None:
    """Return the IOMMU group of a mediated device; None if it has none."""
    text = _link(os.path.join(directory(uuid), "iommu_group"))
    return int(text) if text.isdigit() else None


def _parse(
    parent: object,
    type_name: object,
    number: object,
    uuid: object,
    epoch: object,
    milliseconds: object,
) -> MdevSlot | None:
    if (
        not functions.is_uuid(uuid)
        or not functions.is_number(epoch, worker.EPOCH_LIMIT)
        or not functions.is_deadline(milliseconds)
    ):
        return None
    return parse_slot((parent, type_name, number))


def parse_slot(parts: object) -> MdevSlot | None:
    """Return the slot of a parent, a type and a number; None if they are invalid."""
    if not isinstance(parts, tuple | list) or len(parts) != 3:
        return None
    parent, type_name, number = parts
    if not functions.is_number(number, _HIGHEST_SLOT):
        return None
    try:
        return MdevSlot(MdevType(parent, type_name), number)
    except exception.InvalidInput:
        return None


def _run(
    slot: MdevSlot, epoch: int, milliseconds: int, step: Callable[[], CallResult]
) -> CallResult:
    (result,) = worker.run(
        [slot],
        epoch,
        milliseconds / 1000,
        lambda _index: _guarded(step),
    )
    return result


def _guarded(step: Callable[[], CallResult]) -> CallResult:
    try:
        return step()
    except OSError as error:
        return CallResult(
            Outcome.REFUSED, error.errno or errno.EIO, functions.attribute(error)
        )


def _create(
    slot: MdevSlot, uuid: str, root: RootConf, releaser: str, node: str
) -> CallResult:
    claimed = claimed_by_another(slot, uuid)
    if claimed is not None:
        return claimed
    kind, found = slot.type, _type_of(uuid)
    if found == kind:
        return CallResult(Outcome.OK)
    if found is not None:
        return CallResult(Outcome.CHANGED, 0, "mdev_type", str(found))
    if not root.allows_mdev(kind):
        return rootconf.denied()
    if (gone := locks.missing_type(kind)) is not None:
        return gone
    if releaser:
        record_slot(slot, uuid, releaser, node)
    kernel.current.write(os.path.join(locks.type_directory(kind), "create"), uuid)
    found = _type_of(uuid)
    if found != kind:
        return CallResult(Outcome.NO_EFFECT, 0, "create", str(found or ""))
    return CallResult(Outcome.OK)


def _remove(slot: MdevSlot, uuid: str, *, is_owed: bool) -> CallResult:
    found = _type_of(uuid)
    if found not in (None, slot.type):
        # Its own is gone: a record would keep the slot for nothing.
        if not is_owed:
            _forget(slot, uuid)
        return CallResult(Outcome.CHANGED, 0, "mdev_type", str(found))
    # A record permits steps. None is made here: the UUID may be that of another
    # service's mediated device.
    result = CallResult(Outcome.OK) if found is None else _remove_existing(uuid)
    if not is_owed and result.outcome == Outcome.OK:
        _forget(slot, uuid)
    return result


def _forget(slot: MdevSlot, lease: str) -> None:
    # A damaged record may belong to another lease: an operator decides.
    with contextlib.suppress(record.RecordUnclear):
        found = record.read(slot)
        if found is not None and found.lease == lease:
            record.remove(slot)


def _repair(slot: MdevSlot, lease: str, releaser: str, node: str) -> CallResult:
    try:
        record.read(slot)
    except record.RecordUnclear:
        if releaser and record.identity_of(slot) is not None:
            record_slot(slot, lease, releaser, node)
        else:
            record.remove(slot)
    return CallResult(Outcome.OK)


def _remove_existing(uuid: str) -> CallResult:
    number = group(uuid)
    # The removal of an open mediated device waits until it is closed.
    if number is not None and kernel.current.probe_vfio_group(number) == errno.EBUSY:
        return CallResult(Outcome.IN_USE, errno.EBUSY, "remove")
    kernel.current.write(os.path.join(directory(uuid), "remove"), "1")
    found = _type_of(uuid)
    if found is not None:
        return CallResult(Outcome.NO_EFFECT, 0, "remove", str(found))
    return CallResult(Outcome.OK)


def _type_of(uuid: str) -> MdevType | None:
    """Return the type of a mediated device; None if it does not exist.

    :raises OSError: it exists, but its type is unknown.
    """
    path = directory(uuid)
    name = _link(os.path.join(path, "mdev_type"))
    if not name:
        if not os.path.lexists(path):
            return None
        raise OSError(errno.ENODATA, os.strerror(errno.ENODATA), "mdev_type")
    parent = os.path.basename(os.path.dirname(os.path.realpath(path)))
    try:
        return MdevType(parent, name)
    except exception.InvalidInput as error:
        raise OSError(errno.EINVAL, "not a type", "mdev_type") from error


def _link(path: str) -> str:
    try:
        return os.path.basename(os.readlink(path))
    except (FileNotFoundError, NotADirectoryError):
        return ""
