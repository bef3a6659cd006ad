# SPDX-License-Identifier: Apache-2.0

"""Recognise cards of one model that have no serial number.

Only their addresses identify them. They have to be erased: a reboot after which the
cards of the model have other addresses may have moved each of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from os_acc import exception
from os_acc.host import attributes, pci
from os_acc.objects.lease import Lease
from os_acc.objects.pci import PciAddress


def of(root: str, lease: Lease) -> tuple[PciAddress, ...]:
    """Return the functions of the model of a lease's device, or of its PF, sorted."""
    found = pci.scan(root).functions
    own = found.get(lease.address) if isinstance(lease.address, PciAddress) else None
    if own is None:
        return ()
    model = found.get(own.physfn or own.address, own).identity.numbers
    return tuple(
        sorted(at for at, each in found.items() if each.identity.numbers == model)
    )


def moved(root: str, lease: Lease) -> exception.DeviceChanged | None:
    """Return an error if a reboot may have moved the device of a lease.

    It has moved cards of its model; or a card was added or removed.
    """
    if not lease.peers or lease.boot_id == attributes.boot_id(root):
        return None
    if (now := of(root, lease)) == lease.peers:
        return None
    before, after = (", ".join(map(str, each)) for each in (lease.peers, now))
    return exception.DeviceChanged(
        f"{lease.address} has no serial number, and the cards of its model were at "
        f"{before} before the reboot, and are at {after or 'other places'}",
        hint="put them into their former slots again; an instance that need not have "
        "its data can be unplugged",
    )


def check_distinct(root: str, lease: Lease) -> None:
    """Check that no reboot can have moved the device of a lease.

    :raises DeviceChanged: see :func:`moved`.
    """
    if (error := moved(root, lease)) is not None:
        raise error


def check_new(root: str, leases: Iterable[Lease], others: Iterable[Lease]) -> None:
    """Check that new devices cannot be those of other leases.

    :raises DeviceInUse: one may be.
    """
    numberless = [each for each in others if each.peers]
    for lease in leases if numberless else ():
        own = of(root, lease)
        for other in numberless:
            error = None if set(own).isdisjoint(other.peers) else moved(root, other)
            if error is not None:
                raise exception.DeviceInUse(
                    f"{lease.address} may have the data of instance "
                    f"{other.consumer_title}: {error}",
                    address=str(lease.address),
                    hint=error.hint,
                ) from error
