# SPDX-License-Identifier: Apache-2.0

"""Comparison of leases with the host."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent import futures
from typing import TypeVar

from oslo_log import log

from os_acc import deadlines, exception
from os_acc.attach import own_drivers, peers
from os_acc.helper import client
from os_acc.host import attributes, health, mdev, pci, usage, vfio
from os_acc.host.pci import Host
from os_acc.objects.lease import Lease, LeaseState, PriorBinding
from os_acc.objects.mdev import MdevSlot, function_of
from os_acc.objects.pci import PciAddress, PciFunction, PciIdentity, physfns
from os_acc.objects.request_group import AttachTarget
from os_acc.objects.vfio_driver import is_vfio_driver
from os_acc.privsep.functions import is_driver_name

LOG = log.getLogger(__name__)

_T = TypeVar("_T")

# A read takes microseconds, or waits behind a stuck write for ever.
_READ_SECONDS = 5.0


class Unsettled(exception.DeviceChanged):
    """The host was scanned before a device had its present binding.

    Another scan finds the binding. A plugin's DeviceChanged does not have this class:
    another scan would repeat its cause.
    """


def read_prior(
    root: str, members: Sequence[PciAddress], deadline: float = math.inf
) -> tuple[PriorBinding, ...]:
    """Read the present bindings of functions.

    :raises DeviceGone: a function has vanished.
    :raises DeviceStuck: the kernel does not return from a read in time.
    """
    return tuple(_prior(root, address, deadline) for address in members)


def check_unchanged(root: str, leases: Sequence[Lease], deadline: float) -> None:
    """Check that devices are still bound as their leases record.

    :raises Unsettled: a device was changed during its selection.
    """
    for lease in leases:
        check_parent(root, lease)
        if read_prior(root, lease.functions, deadline) != lease.prior:
            raise Unsettled(
                f"{lease.address} changed during its selection",
                reason=exception.ChangeReason.UNSETTLED,
            )


def check_answers(
    root: str, functions: Collection[PciAddress], deadline: float
) -> None:
    """Check that functions have power, before anything is written to them.

    sysfs has a function without power as before, and its binding would fail half-way.

    :raises HostStepFailed: NO_ANSWER: one does not answer.
    :raises DeviceStuck: the kernel does not return from a read in time.
    """
    for address in functions:
        stuck = exception.DeviceStuck(
            f"the configuration space of {address} cannot be read: an earlier "
            "access to it has not returned",
            address=str(address),
        )
        if not _read(deadline, stuck, health.answers, root, address):
            raise exception.HostStepFailed(
                f"{address} {health.SILENT}",
                address=str(address),
                reason=exception.StepReason.NO_ANSWER,
            )


def check_unused(root: str, leases: Sequence[Lease]) -> None:
    """Check that the host does not use leased devices.

    After a reboot it may have mounted the disk of a guest, or put it into an array.

    :raises DeviceInUse: the host uses one.
    """
    if not leases:
        return
    taken = [address for lease in leases for address in lease.functions]
    functions = (pci.read_function(root, address) for address in taken)
    uses = usage.read_usage(root, {each.address: each for each in functions if each})
    for lease in leases:
        own_drivers.check_vgpu(root, lease)
        for address in lease.functions:
            if address in uses:
                raise exception.DeviceInUse(
                    f"{address} is used by the host: {uses[address]}",
                    address=str(address),
                    hint="release it on the host, then plug again",
                )


def check_undivided(root: str, lease: Lease, deadline: float) -> None:
    """Check that no function of a lease has MIG instances, before it is taken.

    The helper itself checks for VFs and mediated devices. Any user can see MIG
    instances, so that root need not parse the files of NVIDIA's driver.

    :raises DeviceInParts: a function has one, or its driver does not tell.
    :raises DeviceStuck: the kernel does not return from a read in time.
    """
    instances = usage.mig_instances(root)
    for address in lease.functions if instances else ():
        stuck = exception.DeviceStuck(
            f"cannot read the MIG instances of {address}: NVIDIA's driver does not "
            "return",
            address=str(address),
        )
        use = _read(deadline, stuck, usage.mig_use, root, address, instances)
        if use is not None:
            raise client.DeviceInParts(
                f"{address} cannot be given to a guest: {use}", address=str(address)
            )


def check_viable(root: str, lease: Lease) -> None:
    """Check that VFIO lets a guest open the lease's IOMMU group.

    :raises HostStepFailed: the group has no device node, or a member's driver
        keeps it from being viable.
    """
    number = lease.handle.iommu_group
    if lease.slot is not None:
        created = mdev.read_mdev(root, lease.uuid)
        number = created.iommu_group if created else None
    node = os.path.join(root, "dev/vfio", str(number))
    if number is None or not os.path.exists(node):
        raise exception.HostStepFailed(
            f"{lease.address} is ready for VFIO, but {node} does not exist",
            address=str(lease.address),
        )
    if lease.slot is not None:
        return
    own_drivers.check_offered(root, lease)
    if (found := _obstacle(root, lease)) is not None:
        address, driver = found
        raise exception.HostStepFailed(
            f"IOMMU group {number} cannot be assigned to a guest: {address} is bound "
            f"to {driver}",
            address=str(address),
            hint="unbind it, or unplug the instance, then plug again",
        )


def _obstacle(
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


def holds(root: str, lease: Lease) -> bool:
    """Return whether the devices of a held lease are as recorded, in this boot.

    A device with ``attach_target=host`` may have any driver. A region with a
    requested function is as recorded only if it was read in this boot.

    :raises DeviceGone: a function has vanished.
    :raises DeviceChanged: a function was exchanged.
    """
    functions = _same_functions(root, lease)
    this_boot = attributes.boot_id(root)
    programming = lease.programming
    if lease.boot_id != this_boot:
        return False
    if programming and programming.is_bound and programming.boot_id != this_boot:
        return False
    if lease.slot is not None and lease.is_the_guests:
        created = mdev.read_mdev(root, lease.uuid)
        return created is not None and created.type == lease.slot.type
    # Another function may have been put into the group.
    return not lease.is_the_guests or (
        all(
            function.iommu_group == lease.handle.iommu_group
            and own_drivers.is_as_leased(root, lease, function)
            for function in functions
        )
        and _obstacle(root, lease, lease.functions) is None
    )


def verified(lease: Lease) -> Lease:
    """Return the lease with its region, if any, as correct in the lease's boot."""
    if lease.programming is None:
        return lease
    return dataclasses.replace(
        lease,
        programming=dataclasses.replace(lease.programming, boot_id=lease.boot_id),
    )


def refreshed(root: str, lease: Lease, deadline: float) -> Lease:
    """Return the lease with the present bindings, group, boot and PFs.

    :raises DeviceGone: a function has vanished.
    :raises DeviceChanged: a function was exchanged.
    :raises HostStepFailed: the device has no IOMMU group any more.
    """
    this_boot = attributes.boot_id(root)
    functions = _same_functions(root, lease)
    if lease.slot is not None:
        return dataclasses.replace(lease, boot_id=this_boot)
    group = functions[0].iommu_group
    if group is None:
        raise exception.HostStepFailed(
            f"{lease.address} has no IOMMU group",
            address=str(lease.address),
            reason=exception.StepReason.IOMMU,
        )
    # On a VFIO driver it may be in a guest that the host itself has started: then only
    # the record has the prior binding. A device that stays on its driver returns to it.
    prior = tuple(
        old
        if function.driver == lease.driver_of(function.address)
        or not is_vfio_driver(lease.driver)
        or lease.boot_id == this_boot
        else dataclasses.replace(
            _prior(root, function.address, deadline),
            identity=function.identity.completed(old.identity),
        )
        for old, function in zip(lease.prior, functions, strict=True)
    )
    return dataclasses.replace(
        lease,
        prior=prior,
        handle=dataclasses.replace(lease.handle, iommu_group=group),
        boot_id=this_boot,
        physfns=physfns(functions),
    )


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


def remaining(root: str, lease: Lease) -> Lease:
    """Return the lease without functions that have vanished or were exchanged.

    The group is the present one: a boot or a hot plug may renumber groups.
    """
    prior = () if peers.moved(root, lease) else lease.prior
    found = [(old, _same(root, old)) for old in prior]
    groups = (now.iommu_group for _, now in found if now is not None)
    number = next((each for each in groups if each is not None), None)
    return dataclasses.replace(
        lease,
        prior=tuple(old for old, now in found if now is not None),
        handle=lease.handle
        if number is None
        else dataclasses.replace(lease.handle, iommu_group=number),
    )


def is_in_place(root: str, lease: Lease) -> bool:
    """Return whether a function of a lease, or its parent, is still the same one."""
    if lease.slot is None:
        return bool(remaining(root, lease).prior)
    try:
        check_parent(root, lease)
    except (exception.DeviceGone, exception.DeviceChanged):
        return False
    return True


def given_back_by_reboot(root: str, lease: Lease, deadline: float) -> bool:
    """Return whether a reboot has already undone all changes of the lease.

    A plug of this boot that has failed has left its override at least.
    """
    if lease.boot_id == attributes.boot_id(root) or not is_back(root, lease):
        return False
    found = read_prior(root, remaining(root, lease).functions, deadline)
    return not any(is_vfio_driver(each.driver_override) for each in found)


def begun_plugs(root: str, leases: Iterable[Lease]) -> set[str]:
    """Return the UUIDs of leases whose plug has begun in this boot, and not ended."""
    begun = [each for each in leases if each.state is LeaseState.PREPARING]
    this_boot = attributes.boot_id(root) if begun else ""
    return {each.uuid for each in begun if each.boot_id == this_boot}


def is_back(root: str, lease: Lease) -> bool:
    """Return whether no function of a lease is prepared for a guest."""
    if lease.slot is not None:
        return mdev.read_mdev(root, lease.uuid) is None
    found = filter(None, (pci.read_function(root, each) for each in lease.functions))
    return not any(own_drivers.is_prepared(root, lease, each) for each in found)


def moved(root: str, lease: Lease) -> bool:
    """Return whether a function is bound to another driver than its prior one."""
    return any(
        pci.read_driver(root, old.address) not in (None, old.driver)
        for old in lease.prior
    )


def _same(root: str, old: PriorBinding) -> PciFunction | None:
    now = pci.read_function(root, old.address)
    if now is None:
        LOG.warning("not restoring %s: it has vanished", old.address)
        return None
    if not now.identity.may_be(old.identity):
        LOG.warning(
            "not restoring %s: it is now %s, it was %s",
            old.address,
            now.identity,
            old.identity,
        )
        return None
    return now


def _function(root: str, address: PciAddress) -> PciFunction:
    function = pci.read_function(root, address)
    if function is None:
        raise exception.DeviceGone(f"{address} has vanished from the host")
    return function


def _read(
    deadline: float,
    stuck: exception.DeviceStuck,
    function: Callable[..., _T],
    *args: object,
) -> _T:
    """Read an attribute whose read may hang, for a bounded time.

    :param stuck: raised if the read does not return.
    """
    reading = deadlines.begin(function, *args)
    if not futures.wait([reading], deadlines.patience(deadline, _READ_SECONDS)).done:
        raise stuck
    return reading.result()


def _prior(root: str, address: PciAddress, deadline: float) -> PriorBinding:
    deadlines.left(deadline)
    stuck = exception.DeviceStuck(
        f"cannot read driver_override of {address}: the kernel does not return",
        address=str(address),
    )
    binding = _read(deadline, stuck, pci.read_binding, root, address)
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


def parent_identity(root: str, slot: MdevSlot) -> PciIdentity | None:
    """Return the identity of a slot's parent; None: a virtual parent.

    :raises DeviceGone: the parent has vanished.
    """
    address = slot.type.function
    if address is not None:
        return _function(root, address).identity
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


def _same_functions(root: str, lease: Lease) -> tuple[PciFunction, ...]:
    check_parent(root, lease)
    peers.check_distinct(root, lease)
    functions = tuple(_function(root, address) for address in lease.functions)
    for old, now in zip(lease.prior, functions, strict=True):
        if not now.identity.may_be(old.identity):
            raise exception.DeviceChanged(
                f"{old.address} is now {now.identity}, it was {old.identity}",
                hint="the card was exchanged: unplug the instance",
            )
    return functions


def check_leases_answer(root: str, leases: Iterable[Lease], deadline: float) -> None:
    """Check that the functions of leases answer; see :func:`check_answers`.

    Those of a mediated device are its parent.
    """
    places = (function_of(each) for lease in leases for each in lease.members)
    found = sorted({each for each in places if each is not None})
    check_answers(root, found, deadline)


def is_about(lease: Lease, address: str) -> bool:
    """Return whether an address is a function of a lease, or its region's card."""
    addresses = {*map(str, lease.members)}
    if lease.programming is not None:
        addresses.add(str(lease.programming.region.card))
    return address in addresses
