# SPDX-License-Identifier: Apache-2.0

"""Requests to the helper about the functions of a lease."""

from __future__ import annotations

from os_acc.objects.lease import Lease
from os_acc.privsep.binding import GiveBackRequest
from os_acc.privsep.claims import ReserveRequest, TakeRequest
from os_acc.privsep.record import FunctionUse
from os_acc.privsep.request import BindTarget


def take(lease: Lease, milliseconds: int, node: str) -> TakeRequest:
    """Return the request to bind the functions of a lease to their VFIO drivers."""
    return TakeRequest(
        group=_group(lease),
        targets=targets(lease),
        epoch=lease.epoch,
        milliseconds=milliseconds,
        lease=lease.uuid,
        eraser=lease.eraser,
        releaser=lease.releaser,
        node=node,
    )


def reserve(
    lease: Lease, milliseconds: int, node: str, instead_of: str
) -> ReserveRequest:
    """Return the request to record the functions of a lease without binding them."""
    return ReserveRequest(
        group=_group(lease),
        targets=targets(lease),
        epoch=lease.epoch,
        milliseconds=milliseconds,
        lease=lease.uuid,
        use=FunctionUse.GUEST if lease.is_the_guests else FunctionUse.HOST,
        instead_of=instead_of,
        eraser=lease.eraser,
        releaser=lease.releaser,
        node=node,
    )


def give_back(
    lease: Lease, milliseconds: int, proven_free: bool = False
) -> GiveBackRequest:
    """Return the request to restore the prior bindings of the functions of a lease."""
    prior = (
        BindTarget(
            address=each.address,
            identity=each.identity.numbers,
            driver=each.driver or "",
            override=each.driver_override or "",
            serial=each.identity.number,
        )
        for each in lease.prior
    )
    return GiveBackRequest(
        group=_group(lease),
        targets=tuple(prior),
        epoch=lease.epoch,
        milliseconds=milliseconds,
        proven_free=proven_free,
        lease=lease.uuid,
        eraser=lease.eraser,
        releaser=lease.releaser,
    )


def targets(lease: Lease) -> tuple[BindTarget, ...]:
    """Return the functions of a lease, with the drivers that they get for a guest."""
    return tuple(
        BindTarget(
            address=each.address,
            identity=each.identity.numbers,
            driver=lease.driver_of(each.address),
            serial=each.identity.number,
        )
        for each in lease.prior
    )


def _group(lease: Lease) -> int:
    assert lease.handle.iommu_group is not None
    return lease.handle.iommu_group
