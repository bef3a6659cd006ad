# SPDX-License-Identifier: Apache-2.0

"""Devices that stay on a driver of the host while a guest has them."""

from __future__ import annotations

from collections.abc import Iterable

from os_acc import exception
from os_acc.helper import client
from os_acc.host import mdev, pci, vfio
from os_acc.objects.lease import Lease
from os_acc.objects.pci import PciAddress, PciFunction
from os_acc.objects.vfio_driver import is_vfio_driver


def check_free(
    root: str, helper: client.Helper, leases: Iterable[Lease], deadline: float
) -> None:
    """Check that guests' functions are where they stay, and that no process has them.

    Later a rollback would wait for that process. A device that stays with the host may
    be in use there, but not by a guest, and not if it is to be erased.

    :raises HostStepFailed: one is on another driver, or on none.
    :raises DeviceInUse: a process has one.
    """
    affected = [each for each in leases if _must_be_free(each)]
    for lease in affected:
        for address in _staying(lease) if lease.is_the_guests else ():
            function = pci.read_function(root, address)
            if function is not None and function.driver != lease.driver:
                raise exception.HostStepFailed(
                    f"{address} is bound to {function.driver or 'no driver'}, and its "
                    f"guest needs it on {lease.driver}",
                    address=str(address),
                    hint=f"load {lease.driver}, and bind the device to it",
                )
    if not affected:
        return
    try:
        helper.check_free(
            [each for lease in affected for each in lease.functions], deadline
        )
    except exception.DeviceInUse:
        if len(affected) == 1:
            raise
        # One answer for all: ask which device is held, unless it is free by now.
        for lease in affected:
            helper.check_free(lease.functions, deadline)


def _must_be_free(lease: Lease) -> bool:
    on_vfio = any(is_vfio_driver(each.driver) for each in lease.prior)
    return not lease.slot and (lease.is_the_guests or lease.needs_erase or on_vfio)


def check_offered(root: str, lease: Lease) -> None:
    """Check that the driver on which a device stays offers it to the guest.

    :raises HostStepFailed: it does not.
    """
    for address in _staying(lease):
        # The step that made a vGPU has read its type back.
        if not lease.handle.vgpu_type and not vfio.is_offered(
            root, address, lease.driver
        ):
            raise exception.HostStepFailed(
                f"{lease.driver} does not offer {address} to guests: the device has no "
                "vfio-dev",
                address=str(address),
            )


def check_vgpu(root: str, lease: Lease) -> None:
    """Check that the VF of a leased vGPU is no vGPU of another type.

    :raises DeviceInUse: it is; another tool has made it.
    """
    address = lease.address
    if not lease.handle.vgpu_type or not isinstance(address, PciAddress):
        return
    found = mdev.vgpu_type(root, address)
    if found and found != lease.handle.vgpu_type:
        raise exception.DeviceInUse(
            f"{address} is a vGPU of type {found}, and its guest needs one of type "
            f"{lease.handle.vgpu_type}",
            address=str(address),
            hint="delete the vGPU with the tool that created it, or write 0 to "
            "nvidia/current_vgpu_type of the VF, then plug again",
        )


def is_as_leased(root: str, lease: Lease, function: PciFunction) -> bool:
    """Return whether a function is prepared, and no vGPU of another type."""
    if not lease.handle.vgpu_type:
        return is_prepared(root, lease, function)
    # A function that stays is alone in its group.
    found = mdev.vgpu_type(root, function.address)
    return function.driver == lease.driver and found == lease.handle.vgpu_type


def is_prepared(root: str, lease: Lease, function: PciFunction) -> bool:
    """Return whether a function of a lease is on its driver for a guest.

    A vGPU of another type counts: its VF is not back on the host.
    """
    driver = lease.driver_of(function.address)
    if function.driver != driver:
        return False
    if is_vfio_driver(driver):
        return True
    # The function stays on the driver of the host, too.
    if lease.handle.vgpu_type:
        return bool(mdev.vgpu_type(root, function.address))
    return vfio.is_offered(root, function.address, driver)


def _staying(lease: Lease) -> list[PciAddress]:
    """Return the functions of a lease that stay on a driver of the host."""
    return [
        each for each in lease.functions if not is_vfio_driver(lease.driver_of(each))
    ]
