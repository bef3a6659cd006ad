# SPDX-License-Identifier: Apache-2.0

"""Targets of a call of :mod:`os_acc.privsep.binding`."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Sequence
from typing import NamedTuple

from os_acc.objects.pci import PciAddress
from os_acc.privsep import functions, record, rootconf, worker
from os_acc.privsep.outcome import CallRefused, CallResult, Outcome

_GROUP_LIMIT = 2**31 - 1


class BindTarget(NamedTuple):
    """One function of a call, with its expected identity.

    :ivar driver: the driver to bind or to restore; '' for none, or vfio-pci.
    :ivar override: the ``driver_override`` to restore.
    :ivar serial: as the caller knows it (:func:`.functions.serial`); '' if unknown.
    """

    address: PciAddress
    identity: tuple[int, ...]
    group: int
    driver: str = ""
    override: str = ""
    serial: str = ""


#: Decision of root's configuration about a function; None: no limit.
Permission = Callable[[BindTarget], bool | None]


def parse(
    group: int, targets: object, epoch: object, milliseconds: object, *fields: int
) -> tuple[BindTarget, ...] | None:
    """Parse the arguments of a call; return None if they are malformed.

    :param fields: the numbers of fields that a target may have.
    """
    if not functions.is_number(group, _GROUP_LIMIT) or not is_call(epoch, milliseconds):
        return None
    return parse_each(group, targets, *fields) or None


def is_call(epoch: object, milliseconds: object) -> bool:
    """Return whether a call has an acceptable epoch and deadline."""
    return functions.is_number(epoch, worker.EPOCH_LIMIT) and functions.is_deadline(
        milliseconds
    )


def parse_each(
    group: int, targets: object, *fields: int
) -> tuple[BindTarget, ...] | None:
    """Parse the targets of a call, which may be none; see :func:`parse`."""
    if not isinstance(targets, tuple | list):
        return None
    parsed = [_parse_target(group, target, fields) for target in targets]
    whole = tuple(target for target in parsed if target is not None)
    # A second lock of the same device would wait for the first.
    different = {target.address for target in whole}
    return whole if len(different) == len(parsed) else None


def _parse_target(
    group: int, target: object, fields: tuple[int, ...]
) -> BindTarget | None:
    if not isinstance(target, tuple | list) or len(target) not in fields:
        return None
    address = functions.parse_address(target[0])
    identity = target[1]
    if address is None or not functions.is_identity(identity):
        return None
    names, serial = tuple(target[2:4]), tuple(target[4:])
    if not all(map(functions.is_driver_name, names)):
        return None
    if not all(map(functions.is_text, serial)):
        return None
    return BindTarget(address, tuple(identity), group, *names, *serial)


def permission(targets: Sequence[BindTarget]) -> Permission:
    """Return a check of the call's functions by root's configuration."""
    root = rootconf.current()

    def allows(target: BindTarget) -> bool | None:
        if root.is_open:
            return None
        # The groups of later targets have not been checked yet.
        group = functions.group(target.address)
        card = [
            each.address
            for each in targets
            if each is target
            or (
                each.address.same_slot(target.address)
                and functions.group(each.address) == group
                and not root.is_in_parts(each.address)
            )
        ]
        return root.allows(*card)

    return allows


def is_denied(target: BindTarget, allows: Permission) -> bool:
    """Return whether root's configuration excludes a function from leases.

    A PF that is offered as VFs is itself no device: see
    :mod:`os_acc.inventory.eligibility`.
    """
    allowed = allows(target)
    if allowed is None:
        return False
    return not allowed or rootconf.last_read().is_in_parts(target.address)


def claim(
    targets: Sequence[BindTarget], target: BindTarget, lease: str, instead_of: str
) -> CallResult | None:
    """Check before the first change that no other lease claims a function.

    The call holds the locks of all functions until it ends.
    """
    if target is not targets[0]:
        return None
    try:
        for each in targets:
            found = record.lease_of(*each[:2], lease, instead_of, serial=each.serial)
            if found not in (None, lease, instead_of):
                return CallResult(
                    Outcome.CLAIMED, errno.EBUSY, str(each.address), found
                )
            if found != record.UNREADABLE and (changed := exchanged(each, lease)):
                return changed
    except OSError as error:
        return refused(error)
    return None


def exchanged(target: BindTarget, lease: str) -> CallResult | None:
    """Return a refusal if a function shows another serial number than a lease has.

    :raises RecordUnclear: its record is damaged.
    """
    found = record.of(target.address, target.identity, lease)
    own = found.serial if found is not None and found.lease == lease else ""
    shown = functions.serial(target.address)
    if not shown or (own or target.serial) in ("", shown):
        return None
    return CallResult(Outcome.CHANGED, errno.ESTALE, "serial", shown)


def guarded(
    step: Callable[..., CallResult], target: BindTarget, *args: object
) -> CallResult:
    """Run a step if the function matches the caller's expectation."""
    try:
        refusal = _mismatch(target)
        if refusal is not None:
            return refusal
        result = step(target, *args)
    except CallRefused as refusal:
        result = refusal.result
    except OSError as error:
        result = refused(error)
    try:
        return _exchange(target) or result
    except OSError as error:
        return refused(error)


def refused(error: OSError) -> CallResult:
    """Return the answer for an error of the kernel."""
    return CallResult(
        Outcome.REFUSED, error.errno or errno.EIO, functions.attribute(error)
    )


def _exchange(target: BindTarget) -> CallResult | None:
    """Return a refusal if the function was replaced meanwhile.

    A function removed during a step takes its files along, and its replacement
    may have received the writes.
    """
    found = functions.changed(target.address, target.identity)
    if found is not None and found.outcome == Outcome.CHANGED:
        _let_go(target.address)
    return found


def _mismatch(target: BindTarget) -> CallResult | None:
    if found := functions.changed(target.address, target.identity):
        return found
    number = functions.group(target.address)
    if number != target.group:
        return CallResult(Outcome.CHANGED, 0, "iommu_group", str(number))
    if functions.is_bridge(target.address):
        return CallResult(Outcome.REFUSED, errno.EPERM, "class", "a bridge")
    return None


def _let_go(address: PciAddress) -> None:
    """Undo writes that a newly arrived function may have received."""
    with contextlib.suppress(OSError, CallRefused):
        if functions.override(address):
            functions.set_override(address, "")
            functions.unbind(address)
            functions.probe(address)
