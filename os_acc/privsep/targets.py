# SPDX-License-Identifier: Apache-2.0

"""Checks of the functions of a call, under their locks."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator, Sequence

from os_acc.objects.pci import PciAddress
from os_acc.privsep import functions, record, rootconf
from os_acc.privsep.outcome import CallRefused, Outcome
from os_acc.privsep.request import BindTarget


def is_allowed(target: BindTarget, targets: Sequence[BindTarget]) -> bool:
    """Return whether root's configuration names a function of a call.

    It also allows the functions in the slot and the IOMMU group of one that it names.
    """
    root = rootconf.last_read()
    if root.is_open:
        return True
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


def is_denied(target: BindTarget, targets: Sequence[BindTarget]) -> bool:
    """Return whether root's configuration excludes a function from leases.

    A PF that is offered as VFs is itself no device: see
    :mod:`os_acc.inventory.eligibility`.
    """
    root = rootconf.last_read()
    return not is_allowed(target, targets) or (
        not root.is_open and root.is_in_parts(target.address)
    )


def check_claims(
    targets: Sequence[BindTarget], lease: str, instead_of: str = ""
) -> None:
    """Check before the first change that no other lease claims a function.

    The call holds the locks of all functions until it ends.

    :raises CallRefused: CLAIMED; CHANGED: a function shows another serial number than
        that of the lease.
    """
    for each in targets:
        found = record.lease_of(*each[:2], lease, instead_of, serial=each.serial)
        if found not in (None, lease, instead_of):
            raise CallRefused(
                Outcome.CLAIMED, errno.EBUSY, str(each.address), str(found)
            )
        if found != record.UNREADABLE:
            _check_serial(each, lease)


def _check_serial(target: BindTarget, lease: str) -> None:
    found = record.of(target.address, target.identity, lease)
    own = found.serial if found is not None and found.lease == lease else ""
    shown = functions.serial(target.address)
    if shown and (own or target.serial) not in ("", shown):
        raise CallRefused(Outcome.CHANGED, errno.ESTALE, "serial", shown)


@contextlib.contextmanager
def guarded(target: BindTarget, group: int) -> Iterator[None]:
    """Check that a function is the expected one, before and after the block.

    A function removed meanwhile takes its files along, and its replacement may have
    received the writes.

    :param group: the expected IOMMU group.
    :raises CallRefused: it is another one, or a bridge.
    """
    address = target.address
    functions.check_identity(address, target.identity)
    if (found := functions.group(address)) != group:
        raise CallRefused(Outcome.CHANGED, 0, "iommu_group", str(found))
    if functions.is_bridge(address):
        raise CallRefused(Outcome.REFUSED, errno.EPERM, "class", "a bridge")
    try:
        yield
    finally:
        try:
            functions.check_identity(address, target.identity)
        except CallRefused as refusal:
            if refusal.result.outcome == Outcome.CHANGED:
                _let_go(address)
            raise


def _let_go(address: PciAddress) -> None:
    """Undo writes that a newly arrived function may have received."""
    with contextlib.suppress(OSError, CallRefused):
        if functions.override(address):
            functions.set_override(address, "")
            functions.unbind(address)
            functions.probe(address)
