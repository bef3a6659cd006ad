# SPDX-License-Identifier: Apache-2.0

"""Bind functions to VFIO drivers and restore them (drivers/pci/pci-driver.c).

The order is override, unbind, probe, in both directions: after a crash between any two
of them, the next probe binds the function to the intended driver, and to no other that
matches it. The prior override is restored last, once the driver is bound: clearing an
override does not rebind. Each step may be repeated from any of these states.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Final

from os_acc import deadlines, privsep
from os_acc.objects.drivers import DFL_DRIVER, VFIO_PCI, is_vfio_driver
from os_acc.privsep import (
    fpga,
    kernel,
    pci_functions,
    privileged_conf,
    record,
    request,
)
from os_acc.privsep.claims import (
    Answers,
    TakeRequest,
    check_claims,
    guarded,
    is_recorded,
    record_target,
    run,
    sound_record_of,
)
from os_acc.privsep.outcome import OK, CallRefused, CallResult, Outcome
from os_acc.privsep.record import FunctionUse
from os_acc.privsep.request import BindTarget, GroupRequest, entrypoint


@dataclasses.dataclass(frozen=True, slots=True)
class GiveBackRequest(GroupRequest):
    """Functions that a lease gives back, with driver and override to restore.

    :ivar proven_free: whether the caller checked for holders in ``inspect``.
    :ivar eraser: as for :class:`TakeRequest`. If the call or the record names one, or
        the call names a ``releaser``, the record stays until :func:`forget`: it permits
        the steps that return the device.
    """

    targets: Annotated[tuple[BindTarget, ...], request.targets(4, 5)]
    proven_free: request.Flag
    lease: request.Uuid
    eraser: request.Name = ""
    releaser: request.Name = ""


@entrypoint(privsep.base, TakeRequest, for_each=True)
def take(call: TakeRequest) -> Answers:
    """Bind all functions of an IOMMU group to VFIO drivers, for a lease.

    Each function is recorded with its driver and override before it is changed. No
    function is changed if a record names another lease or is unreadable, if a function
    has VFs or mediated devices, which end when it leaves its driver, or if the host
    uses a disk of one. Root's configuration has to name each function, or another one
    of the call in the same slot. If a function is on the requested driver, only its
    record is written. At last, functions without a reset of their own are reset with
    their bus.
    """
    # The worker's child opens the disks, and ends with the call.
    with contextlib.ExitStack() as claims:
        return run(call, partial(_take, call), partial(_check_take, call, claims))


@entrypoint(privsep.base, GiveBackRequest, for_each=True)
def give_back(call: GiveBackRequest) -> Answers:
    """Restore the prior driver and override of functions.

    The record of the lease supplies both. The caller's values apply if there is no
    record, if it is damaged, or if the function was on a guest's driver when it was
    recorded. A function recorded for another lease stays unchanged, since this lease
    has no claim on it: the answer is ``ok``, and ``observed`` is that lease.

    If root's configuration limits the callers, the caller's values do not apply. A
    function without a record then goes to the driver that the kernel chooses, if it is
    on a guest's driver or on none, and the configuration names it.
    """
    return run(call, partial(_give_back, call))


_SEVERAL: Final[Mapping[str, tuple[type[GroupRequest], Callable[..., Any]]]] = {
    "take": (TakeRequest, take),
    "give_back": (GiveBackRequest, give_back),
}
_name = request.that(lambda name: type(name) is str and name in _SEVERAL)


@dataclasses.dataclass(frozen=True, slots=True)
class SeveralRequest(request.Request):
    """Calls of :func:`.take` or :func:`.give_back`, one for each lease.

    :ivar name: of the function.
    :ivar calls: the values of each call.
    """

    name: Annotated[str, _name]
    calls: Annotated[tuple[request.Values, ...], request.each(request.values)]

    def validate(self) -> None:
        """Check all calls before the first one runs."""
        kind, _ = _SEVERAL[self.name]
        request.require(bool(self.calls))
        for values in self.calls:
            try:
                kind.parse(values)
            except TypeError as error:
                raise request.Malformed from error


@entrypoint(privsep.base, SeveralRequest, for_each=True)
def several(call: SeveralRequest) -> tuple[Answers, ...]:
    """Call an entry point for several leases at once, and return its answers."""
    _, function = _SEVERAL[call.name]
    return tuple(deadlines.side_by_side(call.calls, lambda values: function(*values)))


def _check_take(
    call: TakeRequest, claims: contextlib.ExitStack, index: int
) -> CallResult:
    """Check a function before the first one is changed; keep its disks open."""
    target = call.targets[index]
    if index == 0:
        check_claims(call.targets, call.lease)
    with guarded(target, call.group):
        address, driver = target.address, _requested(target)
        found = pci_functions.driver(address)
        # A function that is already taken stays so after leaving device_spec.
        if found == driver and is_recorded(address, target.identity, call.lease):
            return OK
        root = privileged_conf.last_read()
        is_denied = root.denies_lease(address, call.addresses)
        if is_denied or not _is_named_driver(call, target):
            raise privileged_conf.denied()
        # Also of a function on its driver: the kernel has no lock against new ones.
        pci_functions.check_undivided(address)
        if found == driver:
            return OK
        _check_vfio(driver, found)
        fpga.check_closed(address)
        if not os.path.isdir(kernel.current.path("sys/bus/pci/drivers", driver)):
            raise CallRefused(Outcome.REFUSED, errno.ENODEV, "driver", found)
        claims.enter_context(
            pci_functions.claimed_disks(pci_functions.directory(address))
        )
    return OK


def _take(call: TakeRequest, index: int) -> CallResult:
    target = call.targets[index]
    with guarded(target, call.group):
        address, driver = target.address, _requested(target)
        found = pci_functions.driver(address)
        if found != driver:
            _check_vfio(driver, found)
            # Once more: the functions before this one may have taken long to unbind.
            pci_functions.check_undivided(address)
        record_target(call, target, FunctionUse.GUEST)
        if found != driver:
            pci_functions.rebind(address, driver)
            pci_functions.check_driver(address, driver, driver)
        if target is call.targets[-1]:
            _check_bus_resets(call)
            if call.asks_migration:
                # Beside it, functions of its group may be on vfio-pci.
                asked = next((each for each in call.targets if each.driver), target)
                return pci_functions.migration(call.group, str(asked.address))
    return OK


def _check_bus_resets(call: TakeRequest) -> None:
    """Reset functions with their bus: proves that it is possible after the guest."""
    with contextlib.suppress(CallRefused):
        pci_functions.check_unheld(call.group)
        for each in call.targets:
            if pci_functions.resets_with_bus(each.address):
                pci_functions.reset_bus(each.address)


def _requested(target: BindTarget) -> str:
    return target.driver or VFIO_PCI


def _check_vfio(driver: str, found: str) -> None:
    if not is_vfio_driver(driver):
        raise CallRefused(Outcome.REFUSED, errno.EPERM, "driver", found)


def _is_named_driver(call: TakeRequest, target: BindTarget) -> bool:
    """Return whether root's configuration allows the driver that is requested.

    A function beside the one that a guest gets is on vfio-pci.
    """
    root, driver = privileged_conf.last_read(), _requested(target)
    return root.names_driver(target.address, driver) or (
        driver == VFIO_PCI
        and any(
            root.names_driver(each.address, _requested(each))
            for each in call.targets
            if each is not target
        )
    )


def _give_back(call: GiveBackRequest, index: int) -> CallResult:
    target = call.targets[index]
    with guarded(target, call.group):
        found = sound_record_of(target.address, target.identity, call.lease)
        if found is not None and found.lease != call.lease:
            return CallResult(Outcome.OK, 0, "record", found.lease)
        # A record of a guest's driver does not contain the earlier one.
        if found is not None and (
            not is_vfio_driver(found.driver) or target.driver == found.driver
        ):
            before = found.driver, found.override
            _restore(call, BindTarget(target.address, target.identity, *before))
        elif privileged_conf.last_read().is_open:
            _restore(call, target)
        else:
            _give_to_kernel(call, target)
        _record_returned(call, target, found)
    return OK


def _record_returned(
    call: GiveBackRequest, target: BindTarget, found: record.DeviceRecord | None
) -> None:
    """Remove the record, or keep it until the device is erased and released."""
    # Only forget() ends an erasure that is on record.
    eraser = call.eraser or (found.eraser if found else "")
    if not eraser and (found is None or not call.releaser):
        record.remove_copies(target.address, call.lease)
        record.remove(target.address)
        if found is None:
            record.discard(target.address, target.identity, target.serial)
    elif found is not None or not privileged_conf.last_read().denies_lease(
        target.address, call.addresses
    ):
        # A record permits steps: none is made of a function that may not be taken.
        fresh = record.present(
            target.address, target.identity, call.lease, FunctionUse.HOST
        )
        kept = found or dataclasses.replace(fresh, serial=target.serial or fresh.serial)
        record.write(
            dataclasses.replace(
                fresh,
                first=kept.first,
                serial=kept.serial,
                node=kept.node,
                eraser=eraser,
                releaser=call.releaser,
            )
        )


def _restore(call: GiveBackRequest, target: BindTarget) -> None:
    address = target.address
    # 1. No process may hold the function: a write would wait for the holder. The
    #    driver link is no evidence: a device being removed has already lost it. The
    #    reset of a bus opens the group itself, once libvirt has given it back to root.
    if not call.proven_free and pci_functions.may_be_leaving(
        pci_functions.directory(address)
    ):
        raise CallRefused(Outcome.UNSURE, errno.EACCES, pci_functions.HELD)
    if not call.proven_free or pci_functions.resets_with_bus(address):
        pci_functions.check_unheld(call.group)
    if is_vfio_driver(pci_functions.driver(address)):
        # 2. Leave no data for the next user. VFIO resets when the last holder
        #    closes the device, but does not report a failed reset.
        pci_functions.reset(address)
    if target.driver != DFL_DRIVER:
        fpga.check_closed(address)
    # 3. Back to the prior driver; once more, in case the first probe had no
    #    effect.
    for _attempt in range(2):
        if pci_functions.driver(address) != target.driver:
            _rebind(target)
    # 4. Until the driver is bound, its override keeps other drivers away.
    if pci_functions.driver(address) == target.driver:
        pci_functions.set_override(address, target.override)
    pci_functions.check_driver(address, target.driver, target.override)


def _rebind(target: BindTarget) -> None:
    if target.driver:
        pci_functions.rebind(target.address, target.driver)
    else:
        # It had no driver, and nothing probes it after the unbind.
        with pci_functions.claimed_disks(pci_functions.directory(target.address)):
            pci_functions.set_override(target.address, target.override)
            pci_functions.unbind(target.address)


def _give_to_kernel(call: GiveBackRequest, target: BindTarget) -> None:
    """Let the kernel choose the driver of a function whose record is lost."""
    address, driver = target.address, pci_functions.driver(target.address)
    # Checked before reading the override, which blocks while a held function is
    # being removed.
    if not call.proven_free:
        pci_functions.check_unheld(call.group)
    if (driver, pci_functions.override(address)) == (target.driver, target.override):
        return
    is_guests = is_vfio_driver(driver)
    if (
        not privileged_conf.last_read().allows_with(address, call.addresses)
        or not (is_guests or driver == "")
        or target.override
    ):
        raise privileged_conf.denied(driver)
    if is_guests:
        pci_functions.reset(address)
    pci_functions.set_override(address, "")
    pci_functions.unbind(address)
    if target.driver:
        pci_functions.probe(address)
    pci_functions.check_driver(address, target.driver, "")
