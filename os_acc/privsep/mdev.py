# SPDX-License-Identifier: Apache-2.0

"""Create and remove mediated devices (drivers/vfio/mdev).

A call locks the slot: calls for other slots of the parent go on meanwhile, each with
an epoch of its own. The UUID of a mediated device is that of its lease.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
from collections.abc import Callable
from typing import TypeVar

from os_acc import exception, privsep
from os_acc.objects.mdev import MdevSlot, MdevType
from os_acc.privsep import (
    claims,
    kernel,
    locks,
    pci_functions,
    privileged_conf,
    record,
    request,
    worker,
)
from os_acc.privsep.outcome import OK, CallRefused, CallResult, Outcome
from os_acc.privsep.record import DeviceRecord, FunctionUse

_Call = TypeVar("_Call", "SlotRequest", "RemoveRequest")


@dataclasses.dataclass(frozen=True, slots=True)
class SlotRequest(request.Request):
    """A slot for a lease; see :class:`.claims.TakeRequest`.

    :ivar lease: canonical UUID of the lease and of its mediated device.
    """

    slot: request.Slot
    lease: request.Uuid
    epoch: request.Epoch
    milliseconds: request.Milliseconds
    releaser: request.Name = ""
    node: request.Text = ""
    asks_migration: request.Flag = False


@dataclasses.dataclass(frozen=True, slots=True)
class RemoveRequest(request.Request):
    """A slot whose mediated device is removed.

    :ivar keeps_record: whether a plugin has to release the slot afterwards: its record,
        if any, stays until a call without it.
    """

    slot: request.Slot
    lease: request.Uuid
    epoch: request.Epoch
    milliseconds: request.Milliseconds
    keeps_record: request.Flag = False


@request.entrypoint(privsep.base, SlotRequest)
def create(call: SlotRequest) -> CallResult:
    """Create a mediated device of a type; do nothing if it exists already.

    Root's configuration has to name the type on this parent. If the slot is on record
    for another lease, or its record is damaged, nothing is changed.
    """
    return _run(call, _create)


@request.entrypoint(privsep.base, RemoveRequest)
def remove(call: RemoveRequest) -> CallResult:
    """Remove a lease's mediated device; do nothing if it does not exist.

    One of another type is not removed. One that left root's configuration is.
    """
    try:
        locks.check(call.slot)
    except CallRefused as refusal:
        # The kernel removes the mediated devices of a parent that goes. Without a lock
        # file, this helper has created none since the host was booted.
        if refusal.result.outcome == Outcome.GONE or _type_of(call.lease) is None:
            return OK
    return _run(call, _remove)


@request.entrypoint(privsep.base, SlotRequest)
def repair_record(call: SlotRequest) -> CallResult:
    """Replace the damaged record of a slot by one for a new lease.

    Nothing else is changed: a missing record stays missing, and a sound one as it is.
    Without a releaser, or without the parent, the damaged record is removed.
    """
    return _run(call, _repair) if record.exists(call.slot) else OK


def _run(call: _Call, step: Callable[[_Call], CallResult]) -> CallResult:
    seconds = call.milliseconds / 1000
    return worker.run([call.slot], call.epoch, seconds, lambda _index: step(call))[0]


def record_slot(slot: MdevSlot, lease: str, releaser: str, node: str = "") -> None:
    """Record that a lease has a slot until a plugin has released it.

    The record permits the steps that return the device, and no other lease gets the
    slot. A reboot removes it.

    :raises OSError: the parent is gone, or the record cannot be written.
    """
    if (identity := record.identity_of(slot)) is None:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), "identity")
    taken = lease, slot, identity, "", "", FunctionUse.GUEST
    record.write(DeviceRecord(*taken, releaser=releaser, node=node))


def holder_of(slot: MdevSlot) -> str | None:
    """Return the lease of a slot's record, or None; see :func:`.claims.lease_of`."""
    identity = record.identity_of(slot)
    return None if identity is None else claims.lease_of(slot, identity)


def check_claim(slot: MdevSlot, lease: str) -> None:
    """Raise CallRefused, CLAIMED, if a slot is on record for another lease."""
    if (found := holder_of(slot)) not in (None, lease):
        raise CallRefused(Outcome.CLAIMED, errno.EBUSY, str(slot), str(found))


def directory(uuid: str) -> str:
    """Return the directory of a mediated device."""
    return kernel.current.path("sys/bus/mdev/devices", uuid)


def group(uuid: str) -> int | None:
    """Return the number of the IOMMU group of a mediated device, or None."""
    return pci_functions.group_of(directory(uuid))


def probe(uuid: str) -> int:
    """Answer as :func:`.pci_functions.probe_group` for a mediated device."""
    if (number := group(uuid)) is not None:
        return pci_functions.probe_group(number)
    # Without CONFIG_VFIO_GROUP it has no group (vfio_device_set_group() in
    # drivers/vfio/vfio.h).
    return pci_functions.probe_devices([uuid])


def _create(call: SlotRequest) -> CallResult:
    check_claim(call.slot, call.lease)
    kind, found = call.slot.type, _type_of(call.lease)
    if found == kind:
        return _created(call)
    if found is not None:
        raise CallRefused(Outcome.CHANGED, 0, "mdev_type", str(found))
    if not privileged_conf.last_read().allows_mdev(kind):
        raise privileged_conf.denied()
    locks.check_type(kind)
    if call.releaser:
        record_slot(call.slot, call.lease, call.releaser, call.node)
    path = os.path.join(locks.type_directory(kind), "create")
    kernel.current.write(path, call.lease)
    found = _type_of(call.lease)
    if found != kind:
        raise CallRefused(Outcome.NO_EFFECT, 0, "create", str(found or ""))
    return _created(call)


def _created(call: SlotRequest) -> CallResult:
    if not call.asks_migration:
        return OK
    return pci_functions.migration(group(call.lease), call.lease)


def _remove(call: RemoveRequest) -> CallResult:
    found = _type_of(call.lease)
    # A record permits steps. None is made here: the UUID may be that of another
    # service's mediated device.
    if found == call.slot.type:
        _remove_existing(call.lease)
    if not call.keeps_record:
        _forget(call.slot, call.lease)
    if found not in (None, call.slot.type):
        # Its own is gone: a record would keep the slot for nothing.
        raise CallRefused(Outcome.CHANGED, 0, "mdev_type", str(found))
    return OK


def _forget(slot: MdevSlot, lease: str) -> None:
    # A damaged record may belong to another lease: an operator decides.
    with contextlib.suppress(record.RecordUnclear):
        found = record.read(slot)
        if found is not None and found.lease == lease:
            record.remove(slot)


def _repair(call: SlotRequest) -> CallResult:
    try:
        record.read(call.slot)
    except record.RecordUnclear:
        if call.releaser and record.identity_of(call.slot) is not None:
            record_slot(call.slot, call.lease, call.releaser, call.node)
        else:
            record.remove(call.slot)
    return OK


def _remove_existing(uuid: str) -> None:
    # The removal of an open mediated device waits until it is closed.
    if probe(uuid) == errno.EBUSY:
        raise CallRefused(Outcome.IN_USE, errno.EBUSY, "remove")
    kernel.current.write(os.path.join(directory(uuid), "remove"), "1")
    if (found := _type_of(uuid)) is not None:
        raise CallRefused(Outcome.NO_EFFECT, 0, "remove", str(found))


def _type_of(uuid: str) -> MdevType | None:
    """Return the type of a mediated device; None if it does not exist."""
    path = directory(uuid)
    name = pci_functions.link(path, "mdev_type")
    if not name:
        if not os.path.lexists(path):
            return None
        raise OSError(errno.ENODATA, os.strerror(errno.ENODATA), "mdev_type")
    parent = os.path.basename(os.path.dirname(os.path.realpath(path)))
    try:
        return MdevType(parent, name)
    except exception.InvalidInput as error:
        raise OSError(errno.EINVAL, "not a type", "mdev_type") from error
