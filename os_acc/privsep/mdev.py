# SPDX-License-Identifier: Apache-2.0

"""Create and remove mediated devices (drivers/vfio/mdev).

A call locks the slot: calls for other slots of the parent go on meanwhile, each with
an epoch of its own. Only the caller's own mediated device is removed: its UUID is that
of the lease.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from os_acc import exception, privsep
from os_acc.objects.mdev import MdevSlot, MdevType
from os_acc.privsep import functions, kernel, rootconf, state_files, worker
from os_acc.privsep.outcome import CallResult, Outcome
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
    is_owed: bool = False,
) -> tuple[str, int, str, str]:
    """Create a mediated device of a type; do nothing if it exists already.

    Root's configuration has to name the type on this parent.

    :param number: of the slot.
    :param uuid: canonical UUID of the lease and of its mediated device.
    :param is_owed: whether a plugin has to release the slot: it is recorded first.
    """
    slot = _parse(parent, type_name, number, uuid, epoch, milliseconds)
    if slot is None or type(is_owed) is not bool:
        return CallResult(Outcome.INVALID, errno.EINVAL)
    kind = slot.type
    # Create no lock file for a missing parent.
    if not has_parent(kind):
        return CallResult(Outcome.GONE, errno.ENODEV, "mdev_bus")
    root = rootconf.current()
    return _run(
        slot, epoch, milliseconds, lambda: _create(slot, uuid, root, is_owed=is_owed)
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

    :param number: as for :func:`create`, as is ``uuid``.
    :param is_owed: whether a plugin has to release the slot afterwards: its record, if
        any, stays until a call without it.
    """
    slot = _parse(parent, type_name, number, uuid, epoch, milliseconds)
    if slot is None or type(is_owed) is not bool:
        return CallResult(Outcome.INVALID, errno.EINVAL)
    if not has_parent(slot.type) and not os.path.lexists(_record_path(slot)):
        # The kernel removes the mediated devices of a parent that goes.
        return CallResult(Outcome.OK)
    return _run(slot, epoch, milliseconds, lambda: _remove(slot, uuid, is_owed=is_owed))


def has_parent(kind: MdevType) -> bool:
    """Return whether the parent of a type is there."""
    return os.path.isdir(_parent_directory(kind))


def lock_of(slot: MdevSlot) -> str:
    """Return the name of the worker's lock of a slot."""
    # No other file beside the locks has a name of this form.
    return f"mdev:{slot.type.parent}:{slot.type.name}:{slot.number}"


def record_slot(slot: MdevSlot, lease: str) -> None:
    """Record that a lease has a slot until its plugin has released it.

    The record permits the steps that return the device. A reboot removes it.
    """
    state_files.replace(_record_path(slot), lease)


def holder_of(slot: MdevSlot) -> str:
    """Return the lease that a slot is recorded for; '' for none."""
    try:
        return kernel.current.read(_record_path(slot))
    except FileNotFoundError:
        return ""


def _record_path(slot: MdevSlot) -> str:
    return kernel.current.path(worker.LOCKS, f"{lock_of(slot)}.lease")


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
        [lock_of(slot)], epoch, milliseconds / 1000, lambda _index: _guarded(step)
    )
    return result


def _guarded(step: Callable[[], CallResult]) -> CallResult:
    try:
        return step()
    except OSError as error:
        return CallResult(
            Outcome.REFUSED, error.errno or errno.EIO, functions.attribute(error)
        )


def _create(slot: MdevSlot, uuid: str, root: RootConf, *, is_owed: bool) -> CallResult:
    kind, found = slot.type, _type_of(uuid)
    if found == kind:
        return CallResult(Outcome.OK)
    if found is not None:
        return CallResult(Outcome.CHANGED, 0, "mdev_type", str(found))
    if not root.allows_mdev(kind):
        return rootconf.denied()
    if is_owed:
        record_slot(slot, uuid)
    path = os.path.join(_type_directory(kind), "create")
    try:
        kernel.current.write(path, uuid)
    except FileNotFoundError:
        return CallResult(Outcome.REFUSED, errno.ENOENT, "create")
    found = _type_of(uuid)
    if found != kind:
        return CallResult(Outcome.NO_EFFECT, 0, "create", str(found or ""))
    return CallResult(Outcome.OK)


def _remove(slot: MdevSlot, uuid: str, *, is_owed: bool) -> CallResult:
    kind = _type_of(uuid)
    # A record permits steps. None is made here: the UUID may be that of another
    # service's mediated device.
    result = CallResult(Outcome.OK) if kind is None else _remove_existing(uuid)
    if not is_owed and result.outcome == Outcome.OK and holder_of(slot) == uuid:
        os.unlink(_record_path(slot))
    return result


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


def _parent_directory(kind: MdevType) -> str:
    return kernel.current.path("sys/class/mdev_bus", kind.parent)


def _type_directory(kind: MdevType) -> str:
    return os.path.join(_parent_directory(kind), "mdev_supported_types", kind.name)
