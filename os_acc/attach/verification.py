# SPDX-License-Identifier: Apache-2.0

"""Checks of devices before they are taken, and once they are prepared."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Sequence
from concurrent import futures

from os_acc import deadlines, exception, native_threads
from os_acc.helper import client
from os_acc.host import health, mdev, pci, usage, vfio
from os_acc.host.pci import Host
from os_acc.objects.drivers import is_vfio_driver
from os_acc.objects.lease import Lease, PriorBinding
from os_acc.objects.mdev import MdevSlot, function_of
from os_acc.objects.pci import PciAddress, PciFunction, PciIdentity
from os_acc.objects.request_group import AttachTarget
from os_acc.privsep.request import is_driver_name

# A read takes microseconds, or waits behind a stuck write for ever.
_READ_SECONDS = 5.0


class Unsettled(exception.DeviceChanged):
    """The host was scanned before a device had its present binding.

    Another scan finds the binding. A plugin's DeviceChanged does not have this class:
    another scan would repeat its cause.
    """


def read_prior(
    root: str,
    members: Sequence[PciAddress],
    deadline: float = math.inf,
    powered: Collection[PciAddress] = (),
) -> tuple[PriorBinding, ...]:
    """Read the present bindings of functions.

    sysfs has a function without power as before, and its binding would fail half-way.

    :param powered: functions that have to answer as well.
    :raises HostStepFailed: NO_ANSWER: one does not answer.
    :raises DeviceGone: a function has vanished.
    :raises DeviceStuck: the kernel does not return from a read in time.
    """
    every = (*powered, *members)
    found: list[PriorBinding | None] = []

    def read() -> None:
        for each in powered:
            if not health.answers(root, each):
                raise exception.HostStepFailed(
                    f"{each} {health.SILENT}",
                    address=str(each),
                    reason=exception.StepReason.NO_ANSWER,
                )
            found.append(None)
        for each in members:
            found.append(pci.read_binding(root, each))

    if not every:
        return ()
    seconds = deadlines.patience(deadline, _READ_SECONDS)
    reading = native_threads.begin(read)
    if not futures.wait([reading], seconds).done:
        place = str(every[min(len(found), len(every) - 1)])
        raise exception.DeviceStuck(
            f"{place} cannot be read: the kernel does not return", address=place
        )
    reading.result()
    return tuple(map(_restorable, members, found[len(powered) :]))


def _restorable(address: PciAddress, binding: PriorBinding | None) -> PriorBinding:
    if binding is None:
        raise exception.DeviceGone(f"{address} has vanished from the host")
    for name in (binding.driver, binding.driver_override):
        # A binding that cannot be restored must not be removed.
        if not is_driver_name(name or ""):
            raise exception.HostStepFailed(
                f"{address}: cannot restore {name!r:.80} as its driver",
                address=str(address),
                hint="clear its driver_override, or bind it to another driver",
            )
    return binding


def places(leases: Iterable[Lease]) -> list[PciAddress]:
    """Return the functions of leases; that of a mediated device is its parent."""
    found = {function_of(each) for lease in leases for each in lease.members}
    return sorted(each for each in found if each is not None)


def check_same(host: Host, prior: Sequence[PriorBinding]) -> None:
    """Check that functions have not been exchanged since the scan of the host.

    :raises DeviceChanged: a function was exchanged.
    """
    for each in prior:
        seen = host.function(each.address).identity
        if not seen.may_be(each.identity):
            raise exception.DeviceChanged(
                f"{each.address} is now {each.identity}, it was {seen}",
                hint="the card was exchanged: schedule the instance again",
            )


def check_unbound(
    root: str, prior: Sequence[PriorBinding], prebound: Collection[PciAddress]
) -> None:
    """Check that no driver offers a free device to guests, unless it is ``prebound``.

    :raises Unsettled: another program has bound it to one meanwhile.
    """
    for each in prior:
        if each.address in prebound:
            continue
        if is_vfio_driver(each.driver) or vfio.is_offered(
            root, each.address, each.driver
        ):
            raise Unsettled(
                f"{each.address} is now on {each.driver} for another guest",
                reason=exception.ChangeReason.UNSETTLED,
            )


def check_unchanged(root: str, leases: Sequence[Lease], deadline: float) -> None:
    """Check that devices have power, and are still bound as their leases record.

    :raises Unsettled: a device was changed during its selection.
    :raises OsAccError: as :func:`read_prior`.
    """
    for lease in leases:
        check_parent(root, lease)
    functions = [each for lease in leases for each in lease.functions]
    now = read_prior(root, functions, deadline, places(leases))
    found = dict(zip(functions, now, strict=True))
    for lease in leases:
        if tuple(found[each] for each in lease.functions) != lease.prior:
            raise Unsettled(
                f"{lease.address} changed during its selection",
                reason=exception.ChangeReason.UNSETTLED,
            )


def parent_identity(root: str, slot: MdevSlot) -> PciIdentity | None:
    """Return the identity of a slot's parent; None: a virtual parent.

    :raises DeviceGone: the parent has vanished.
    """
    address = slot.type.function
    if address is not None:
        return present_function(root, address).identity
    if slot.type.parent not in mdev.parents(root):
        raise exception.DeviceGone(f"{slot.type.parent} has vanished from the host")
    return None


def check_parent(root: str, lease: Lease) -> None:
    """Check that the parent of a lease's mediated device is the same one.

    :raises DeviceGone: it has vanished.
    :raises DeviceChanged: it was exchanged.
    """
    if lease.slot is None:
        return
    now = parent_identity(root, lease.slot)
    if now != lease.parent and not (now and lease.parent and now.may_be(lease.parent)):
        raise exception.DeviceChanged(
            f"{lease.slot.type.parent} is now {now}, it was {lease.parent}",
            hint="the card was exchanged: unplug the instance",
        )


def present_function(root: str, address: PciAddress) -> PciFunction:
    function = pci.read_function(root, address)
    if function is None:
        raise exception.DeviceGone(f"{address} has vanished from the host")
    return function


def check_unused(root: str, leases: Sequence[Lease]) -> None:
    """Check that the host does not use leased devices.

    After a reboot it may have mounted the disk of a guest, or put it into an array.

    :raises DeviceInUse: the host uses one.
    """
    if not leases:
        return
    taken = [address for lease in leases for address in lease.functions]
    functions = (pci.read_function(root, address) for address in taken)
    there = {each.address: each for each in functions if each}
    uses = usage.read_usage(root, there, pci.netdevs(root))
    for lease in leases:
        check_vgpu(root, lease)
        for address in lease.functions:
            if address in uses:
                raise exception.DeviceInUse(
                    f"{address} is used by the host: {uses[address]}",
                    address=str(address),
                    hint="release it on the host",
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


def check_free(
    root: str, helper: client.Helper, leases: Iterable[Lease], deadline: float
) -> None:
    """Check that guests' functions are on their drivers, and that no process has them.

    A rollback would have to wait for a process that is found only later. A device that
    stays with the host may be in use there, but not by a guest, and not if it is to be
    erased.

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


def check_undivided(root: str, lease: Lease) -> None:
    """Check that no function of a lease has MIG instances, before it is taken.

    The helper itself checks for VFs and mediated devices. Any user can see MIG
    instances, so that root need not parse the files of NVIDIA's driver.

    :raises DeviceInParts: a function has one, or its driver does not tell.
    """
    if uses := usage.mig_uses(root, lease.functions):
        address, use = next(iter(uses.items()))
        raise client.DeviceInParts(
            f"{address} cannot be given to a guest: {use}", address=str(address)
        )


def check_driven(root: str, lease: Lease) -> None:
    """Check that a device with ``attach_target=host`` has a driver of the host.

    :raises HostStepFailed: the device has no driver, or a VFIO driver.
    """
    if lease.wanted.attach_target is not AttachTarget.HOST:
        return
    place = lease.address
    driver = pci.read_driver(root, place) if isinstance(place, PciAddress) else None
    if driver is None or is_vfio_driver(driver):
        raise exception.HostStepFailed(
            f"{lease.address} has attach_target=host, but it is bound to "
            f"{driver or 'no driver'}",
            address=str(lease.address),
            hint="load its driver, or request attach_target=none",
        )


def check_viable(root: str, lease: Lease) -> None:
    """Check that VFIO lets a guest open the lease's IOMMU group.

    The group has a node, or the device has one for iommufd.

    :raises HostStepFailed: there is no device node, or a member's driver keeps the
        group from being viable.
    """
    number = lease.handle.iommu_group
    if lease.slot is not None:
        created = mdev.read_mdev(root, lease.uuid)
        number = created.iommu_group if created else None
    node = os.path.join(root, "dev/vfio", str(number))
    has_group = number is not None and os.path.exists(node)
    if not has_group and vfio.cdev(root, lease.device_name) is None:
        raise exception.HostStepFailed(
            f"{lease.address} is ready for VFIO, but {node} does not exist, nor a node "
            "of it in /dev/vfio/devices",
            address=str(lease.address),
        )
    if lease.slot is not None:
        return
    check_offered(root, lease)
    if (found := obstacle(root, lease)) is not None:
        address, driver = found
        raise exception.HostStepFailed(
            f"IOMMU group {number} cannot be assigned to a guest: {address} is bound "
            f"to {driver}",
            address=str(address),
            hint="unbind it, or unplug the instance, then plug again",
        )


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


def _staying(lease: Lease) -> list[PciAddress]:
    """Return the functions of a lease that stay on a driver of the host."""
    return [
        each for each in lease.functions if not is_vfio_driver(lease.driver_of(each))
    ]


def obstacle(
    root: str, lease: Lease, checked: Collection[PciAddress] = ()
) -> tuple[PciAddress, str | None] | None:
    """Return an unchecked function whose driver keeps the group from a guest."""
    assert lease.handle.iommu_group is not None, "it has no function"
    for address in vfio.read_iommu_members(root, lease.handle.iommu_group):
        driver = None if address in checked else pci.read_driver(root, address)
        is_own = (address, driver) == (lease.address, lease.driver)
        if not is_own and not vfio.leaves_group_viable(driver):
            return address, driver
    return None
