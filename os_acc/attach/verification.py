# SPDX-License-Identifier: Apache-2.0

"""What leases say of the host, held against what the host shows."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Collection, Iterable, Sequence
from concurrent import futures

from oslo_log import log

from os_acc import deadlines, exception
from os_acc.host import attributes, iommu, pci, usage, vfio
from os_acc.host.view import Host
from os_acc.objects.lease import Lease, PriorBinding
from os_acc.objects.pci import PciAddress, PciFunction
from os_acc.privsep.functions import VFIO_PCI, is_driver_name

LOG = log.getLogger(__name__)

# A read takes microseconds, or waits behind a stuck write for ever.
_READ_SECONDS = 5.0


def read_prior(
    root: str, members: Sequence[PciAddress], deadline: float = math.inf
) -> tuple[PriorBinding, ...]:
    """What these functions are bound to now.

    :raises DeviceGone: one of them is not there any more.
    :raises DeviceStuck: the kernel does not say it in time.
    """
    return tuple(
        _prior(root, _function(root, address), deadline) for address in members
    )


def physfns(functions: Iterable[PciFunction]) -> tuple[PciAddress, ...]:
    """The PFs of those functions that are VFs, sorted."""
    found = {each.physfn for each in functions if each.physfn is not None}
    return tuple(sorted(found))


def check_unchanged(root: str, leases: Sequence[Lease], deadline: float) -> None:
    """Make sure that leases still say what their devices are bound to.

    :raises DeviceChanged: a device changed while it was selected.
    """
    for lease in leases:
        if read_prior(root, lease.members, deadline) != lease.prior:
            raise exception.DeviceChanged(
                f"{lease.address} changed while it was being chosen",
                reason=exception.ChangeReason.UNSETTLED,
            )


def check_unused(root: str, leases: Sequence[Lease]) -> None:
    """Make sure that the host has not begun to use leased devices.

    After a reboot it may have mounted what a guest had written to its disk,
    or put it under a volume or an array, before anybody asks for it again.

    :raises DeviceInUse: it has.
    """
    if not leases:
        return
    uses = usage.read_usage(root, pci.scan(root))
    for lease in leases:
        for address in lease.members:
            what = uses.of(address)
            if what is not None:
                raise exception.DeviceInUse(
                    f"{address} is used by the host: {what}",
                    address=str(address),
                    hint="let the host let go of it, then plug again",
                )


def prove(root: str, lease: Lease) -> None:
    """Make sure that a guest can open the lease's IOMMU group.

    :raises HostStepFailed: there is no node, or a member is in the way.
    """
    node = os.path.join(root, "dev/vfio", str(lease.iommu_group))
    if not os.path.exists(node):
        raise exception.HostStepFailed(
            f"{lease.address} is bound to vfio-pci, but there is no {node}",
            address=str(lease.address),
        )
    group = iommu.read_group(root, lease.iommu_group)
    for address in group.members if group else ():
        function = pci.read_function(root, address)
        if function is None or function.is_bridge:
            continue
        if not vfio.leaves_group_viable(function):
            raise exception.HostStepFailed(
                f"{address} with {function.driver} keeps IOMMU group "
                f"{lease.iommu_group} from being given away",
                address=str(address),
            )


def prove_driven(root: str, lease: Lease) -> None:
    """Make sure that the host can use what is kept for it.

    :raises HostStepFailed: it has no driver, or one that is for guests.
    """
    function = pci.read_function(root, lease.address)
    driver = function.driver if function else None
    if driver is None or vfio.is_vfio_driver(driver):
        raise exception.HostStepFailed(
            f"{lease.address} is the host's by attach_target, but it has "
            f"{driver or 'no driver'} there",
            address=str(lease.address),
            hint="load its driver, or ask for attach_target=none",
        )


def holds(root: str, lease: Lease) -> bool:
    """Whether a held lease's devices are as it says, in this boot.

    One that no guest has is wherever the host wants it. One whose region has
    to hold what was asked for does so if that was read in this boot.

    :raises DeviceGone: one has vanished.
    :raises DeviceChanged: another one sits in its place.
    """
    functions = _same_functions(root, lease)
    this_boot = attributes.boot_id(root)
    promised = lease.programming
    if lease.boot_id != this_boot:
        return False
    if promised and promised.is_bound and promised.boot_id != this_boot:
        return False
    return not lease.is_the_guests or all(
        function.driver == VFIO_PCI and function.iommu_group == lease.iommu_group
        for function in functions
    )


def proved(lease: Lease) -> Lease:
    """The lease whose region was read, and found right, in its boot."""
    assert lease.programming is not None
    return dataclasses.replace(
        lease,
        programming=dataclasses.replace(lease.programming, boot_id=lease.boot_id),
    )


def refreshed(root: str, lease: Lease, deadline: float) -> Lease:
    """The lease with what is true of its devices now.

    :raises DeviceGone: one has vanished.
    :raises DeviceChanged: another one sits in its place.
    :raises HostStepFailed: the device is in no IOMMU group any more.
    """
    this_boot = attributes.boot_id(root)
    functions = _same_functions(root, lease)
    group = functions[0].iommu_group
    if group is None:
        raise exception.HostStepFailed(
            f"{lease.address} is in no IOMMU group",
            address=str(lease.address),
            reason=exception.StepReason.IOMMU,
        )
    # On vfio-pci it may be in a guest that the host itself has started: what
    # it was bound to before is then only known from the record.
    prior = tuple(
        old
        if function.driver == VFIO_PCI or lease.boot_id == this_boot
        else _prior(root, function, deadline)
        for old, function in zip(lease.prior, functions, strict=True)
    )
    return dataclasses.replace(
        lease,
        prior=prior,
        iommu_group=group,
        boot_id=this_boot,
        physfns=physfns(functions),
    )


def check_chosen(host: Host, prior: Sequence[PriorBinding]) -> None:
    """Make sure that these are the functions among which was chosen.

    :raises DeviceChanged: another one has taken the place of one of them.
    """
    for each in prior:
        seen = host.function(each.address).identity
        if seen != each.identity:
            raise exception.DeviceChanged(
                f"{each.address} is now {each.identity}, it was {seen}",
                hint="the card was exchanged: choose among the providers again",
            )


def check_unbound(
    prior: Sequence[PriorBinding], prebound: Collection[PciAddress]
) -> None:
    """Make sure that a free device is not on vfio-pci, unless it always is.

    :raises DeviceChanged: another program has bound it to vfio-pci meanwhile.
    """
    for each in prior:
        if vfio.is_vfio_driver(each.driver) and each.address not in prebound:
            raise exception.DeviceChanged(
                f"{each.address} is with {each.driver} by now, for another guest",
                reason=exception.ChangeReason.UNSETTLED,
            )


def remaining(root: str, lease: Lease) -> Lease:
    """The lease with only those functions that it once took from the host.

    They are in the group in which they are now: a boot, or a hot plug, may
    have numbered the groups anew.
    """
    found = [(old, _same(root, old)) for old in lease.prior]
    groups = [now.iommu_group for _, now in found if now is not None]
    return dataclasses.replace(
        lease,
        prior=tuple(old for old, now in found if now is not None),
        iommu_group=next(
            (number for number in groups if number is not None), lease.iommu_group
        ),
    )


def given_back_by_reboot(root: str, lease: Lease) -> bool:
    """Whether a reboot has already undone all that the lease did."""
    if lease.boot_id == attributes.boot_id(root):
        return False
    found = (pci.read_function(root, address) for address in lease.members)
    return all(function is None or function.driver != VFIO_PCI for function in found)


def moved(root: str, lease: Lease) -> bool:
    """Whether a member of the lease is with a driver that it did not have before."""
    found = ((old, pci.read_function(root, old.address)) for old in lease.prior)
    return any(
        function is not None and function.driver not in (None, old.driver)
        for old, function in found
    )


def _same(root: str, old: PriorBinding) -> PciFunction | None:
    now = pci.read_function(root, old.address)
    if now is None:
        LOG.warning("%s has vanished; nothing of it is restored", old.address)
        return None
    if not now.identity.may_be(old.identity):
        LOG.warning(
            "%s is now %s, it was %s; nothing of it is restored",
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


def _prior(root: str, function: PciFunction, deadline: float) -> PriorBinding:
    deadlines.left(deadline)
    reading = deadlines.begin(pci.read_binding, root, function.address)
    try:
        binding = reading.result(deadlines.patience(deadline, _READ_SECONDS))
    except futures.TimeoutError as error:
        raise exception.DeviceStuck(
            f"{function.address}: the kernel does not say which driver_override it has",
            address=str(function.address),
        ) from error
    if binding is None:
        raise exception.DeviceGone(f"{function.address} has vanished from the host")
    for name in (binding.driver, binding.driver_override):
        # What cannot be restored is not taken away.
        if not is_driver_name(name or ""):
            raise exception.HostStepFailed(
                f"{function.address}: {name!r:.80} cannot be restored as a driver",
                address=str(function.address),
                hint="clear its driver_override, or bind it to a driver by a name",
            )
    return PriorBinding(
        address=function.address,
        identity=function.identity,
        driver=binding.driver,
        driver_override=binding.driver_override,
    )


def _same_functions(root: str, lease: Lease) -> tuple[PciFunction, ...]:
    functions = tuple(_function(root, address) for address in lease.members)
    for old, now in zip(lease.prior, functions, strict=True):
        if not now.identity.may_be(old.identity):
            raise exception.DeviceChanged(
                f"{old.address} is now {now.identity}, it was {old.identity}",
                hint="the card was exchanged: unplug the instance",
            )
    return functions
