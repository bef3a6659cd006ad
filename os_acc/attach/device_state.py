# SPDX-License-Identifier: Apache-2.0

"""The present state of leased devices: as recorded, back on the host, or moved."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from oslo_log import log

from os_acc import exception
from os_acc.attach import verification
from os_acc.host import attributes, mdev, pci, vfio
from os_acc.objects.device_spec import DeviceSpec
from os_acc.objects.drivers import is_vfio_driver
from os_acc.objects.lease import Lease, LeaseState, PriorBinding
from os_acc.objects.pci import PciAddress, PciFunction, physfns

LOG = log.getLogger(__name__)


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
            and is_as_leased(root, lease, function)
            for function in functions
        )
        and verification.obstacle(root, lease, lease.functions) is None
    )


def _same_functions(root: str, lease: Lease) -> tuple[PciFunction, ...]:
    verification.check_parent(root, lease)
    check_distinct(root, lease)
    functions = tuple(
        verification.present_function(root, address) for address in lease.functions
    )
    for old, now in zip(lease.prior, functions, strict=True):
        if not now.identity.may_be(old.identity):
            raise exception.DeviceChanged(
                f"{old.address} is now {now.identity}, it was {old.identity}",
                hint="the card was exchanged: unplug the instance",
            )
    return functions


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

    A reboot may have moved a drive that is on no driver that shows its serial number.
    Only root can tell that it has the data of its guest: its lease keeps the boot until
    its plugin has prepared it.

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
            verification.read_prior(root, [function.address], deadline)[0],
            identity=function.identity.completed(old.identity),
        )
        for old, function in zip(lease.prior, functions, strict=True)
    )
    identities = [each.identity for each in lease.prior]
    identities += [each.identity for each in functions]
    is_shown = all(each.drive for each in identities)
    return dataclasses.replace(
        lease,
        prior=prior,
        handle=dataclasses.replace(lease.handle, iommu_group=group),
        boot_id=this_boot if is_shown or not lease.needs_erase else lease.boot_id,
        physfns=physfns(functions),
    )


def begun_plugs(root: str, leases: Iterable[Lease]) -> set[str]:
    """Return the UUIDs of leases whose plug has begun in this boot, and not ended."""
    begun = [each for each in leases if each.state is LeaseState.PREPARING]
    this_boot = attributes.boot_id(root) if begun else ""
    return {each.uuid for each in begun if each.boot_id == this_boot}


# -- after a reboot or a hot plug: devices to give back ----------------------


def remaining(root: str, lease: Lease) -> Lease:
    """Return the lease without functions that have vanished or were exchanged.

    The group is the present one: a boot or a hot plug may renumber groups.
    """
    prior = () if may_have_moved(root, lease) else lease.prior
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


def is_in_place(root: str, lease: Lease) -> bool:
    """Return whether a function of a lease, or its parent, is still the same one."""
    if lease.slot is None:
        return bool(remaining(root, lease).prior)
    try:
        verification.check_parent(root, lease)
    except (exception.DeviceGone, exception.DeviceChanged):
        return False
    return True


def given_back_by_reboot(root: str, lease: Lease, deadline: float) -> bool:
    """Return whether a reboot has already undone all changes of the lease.

    A plug of this boot that has failed has left its override at least.
    """
    if lease.boot_id == attributes.boot_id(root) or not is_back(root, lease):
        return False
    found = verification.read_prior(root, remaining(root, lease).functions, deadline)
    return not any(is_vfio_driver(each.driver_override) for each in found)


def check_not_novas(root: str, lease: Lease, nova: DeviceSpec) -> None:
    """Check that no guest of Nova's can have a function to erase, or its PF.

    :raises InvalidConfiguration: Nova's options name one.
    """
    if not nova.entries:
        return
    found = [pci.read_function(root, at) for at in (*lease.functions, *lease.physfns)]
    own, netdevs = {each.address: each for each in found if each}, pci.netdevs(root)
    for address, function in own.items():
        if nova.match(function, netdevs, own) is not None:
            raise exception.InvalidConfiguration(
                f"Nova's [pci] device_spec names {address}, so {lease.address} is not "
                "erased: a guest of Nova's may have written to it",
                hint="remove it from Nova's option and restart nova-compute; end the "
                "guest to which Nova gave it, if any; then run 'os-acc device "
                "release', which erases it, or with --force leaves its data",
            )


def is_back(root: str, lease: Lease) -> bool:
    """Return whether no function of a lease is prepared for a guest."""
    if lease.slot is not None:
        return mdev.read_mdev(root, lease.uuid) is None
    found = filter(None, (pci.read_function(root, each) for each in lease.functions))
    return not any(is_prepared(root, lease, each) for each in found)


def moved(root: str, lease: Lease) -> bool:
    """Return whether a function is bound to another driver than its prior one."""
    return any(
        pci.read_driver(root, old.address) not in (None, old.driver)
        for old in lease.prior
    )


# -- cards of one model that have no serial number ---------------------------
#
# Only their addresses identify them. They have to be erased: a reboot after which the
# cards of the model have other addresses may have moved each of them.


def identical_cards(root: str, lease: Lease) -> tuple[PciAddress, ...]:
    """Return the functions of the model of a lease's device, or of its PF, sorted."""
    found = pci.scan(root).functions
    own = found.get(lease.address) if isinstance(lease.address, PciAddress) else None
    if own is None:
        return ()
    model = found.get(own.physfn or own.address, own).identity.numbers
    return tuple(
        sorted(at for at, each in found.items() if each.identity.numbers == model)
    )


def may_have_moved(root: str, lease: Lease) -> exception.DeviceChanged | None:
    """Return an error if a reboot may have moved the device of a lease.

    It has moved cards of its model; or a card was added or removed.
    """
    if not lease.peers or lease.boot_id == attributes.boot_id(root):
        return None
    # Root may have read the serial number since.
    if all(each.identity.drive for each in lease.prior):
        return None
    if (now := identical_cards(root, lease)) == lease.peers:
        return None
    before, after = (", ".join(map(str, each)) for each in (lease.peers, now))
    return exception.DeviceChanged(
        f"{lease.address} has no serial number, and the cards of its model were at "
        f"{before} before the reboot, and are at {after or 'other places'}",
        hint="put them into their former slots again; an instance that need not have "
        "its data can be unplugged, and 'os-acc device release --force' ends an "
        "erasure",
    )


def check_distinct(root: str, lease: Lease) -> None:
    """Check that no reboot can have moved the device of a lease.

    :raises DeviceChanged: see :func:`may_have_moved`.
    """
    if (error := may_have_moved(root, lease)) is not None:
        raise error


def check_new(root: str, leases: Iterable[Lease], others: Iterable[Lease]) -> None:
    """Check that new devices cannot be those of other leases.

    :raises DeviceInUse: one may be.
    """
    numberless = [each for each in others if each.peers]
    for lease in leases if numberless else ():
        own = identical_cards(root, lease)
        for other in numberless:
            if set(own).isdisjoint(other.peers):
                continue
            if (error := may_have_moved(root, other)) is not None:
                raise exception.DeviceInUse(
                    f"{lease.address} may have the data of instance "
                    f"{other.consumer_title}: {error}",
                    address=str(lease.address),
                    hint=error.hint,
                ) from error
