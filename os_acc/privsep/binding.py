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
from collections.abc import Callable, Sequence
from typing import NamedTuple

from os_acc import privsep
from os_acc.objects.pci import PciAddress
from os_acc.objects.vfio_driver import VFIO_PCI, is_vfio_driver
from os_acc.privsep import dfl, disks, functions, record, restoring, rootconf, worker
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.privsep.record import FunctionUse
from os_acc.privsep.targets import (
    BindTarget,
    Permission,
    claim,
    guarded,
    is_denied,
    parse,
    permission,
    refused,
)


class _Debt(NamedTuple):
    """The plugins that have work to do once a function has left its guest; '': none.

    :ivar eraser: erases it.
    :ivar releaser: has prepared it, and releases it.
    """

    eraser: str
    releaser: str
    node: str = ""

    @property
    def is_valid(self) -> bool:
        names = map(functions.is_driver_name, (self.eraser, self.releaser))
        return all(names) and functions.is_text(self.node)


@privsep.base.entrypoint
def take(
    group: int,
    targets: tuple[tuple[object, ...], ...],
    epoch: int,
    milliseconds: int,
    lease: str,
    eraser: str = "",
    releaser: str = "",
    node: str = "",
) -> tuple[tuple[str, int, str, str], ...]:
    """Bind all functions of an IOMMU group to VFIO drivers, for a lease.

    Each function is recorded with its driver and override before it is changed. No
    function is changed if a record names another lease or is unreadable, if a function
    has VFs or mediated devices, which end when it leaves its driver, or if the host
    uses a disk of one. Root's configuration has to name each function, or another one
    of the call in the same slot. If a function is on the requested driver, only its
    record is written. At last, functions without a reset of their own are reset with
    their bus.

    :param targets: for each function its address as four numbers, its identity as
        five (vendor, product, both subsystem ids, revision), and unless it is
        vfio-pci the driver: a variant of vfio-pci, or the present one; then '' and the
        serial number if known.
    :param lease: canonical UUID.
    :param eraser: the plugin that has to erase them afterwards; '' for none.
    :param releaser: the plugin that has to release them afterwards; '' for none.
    :param node: the compute node whose lease it is; '' if unknown.
    """
    parsed = parse(group, targets, epoch, milliseconds, 2, 3, 5)
    debt = _Debt(eraser, releaser, node)
    if parsed is None or not functions.is_uuid(lease) or not debt.is_valid:
        return (CallResult(Outcome.INVALID, errno.EINVAL),)
    allows = permission(parsed)
    # The worker's child opens the disks, and ends with the call.
    with contextlib.ExitStack() as claims:
        return _run(
            parsed,
            epoch,
            milliseconds,
            lambda each: guarded(_take, each, lease, debt, parsed),
            lambda each: (
                claim(parsed, each, lease, "")
                or guarded(_check_take, each, lease, allows, claims, parsed)
            ),
        )


@privsep.base.entrypoint
def give_back(
    group: int,
    targets: tuple[tuple[object, ...], ...],
    epoch: int,
    milliseconds: int,
    proven_free: bool,
    lease: str,
    eraser: str = "",
    releaser: str = "",
) -> tuple[tuple[str, int, str, str], ...]:
    """Restore the prior driver and override of functions.

    The record of the lease supplies both. The caller's values apply if there is no
    record, if it is damaged, or if the function was on a guest's driver when it was
    recorded. A function recorded for another lease stays unchanged, since this lease
    has no claim on it: the answer is ``ok``, and ``observed`` is that lease.

    If root's configuration limits the callers, the caller's values do not apply. A
    function without a record then goes to the driver that the kernel chooses, if it is
    on a guest's driver or on none, and the configuration names it.

    :param targets: as for :func:`take`, with driver and override, '' for none.
    :param proven_free: whether the caller checked for holders in ``inspect``.
    :param lease: canonical UUID.
    :param eraser: as for :func:`take`. If one is named or on record, the record stays
        until :func:`forget`, as it does with a ``releaser``: it permits the steps that
        return the device.
    """
    parsed = parse(group, targets, epoch, milliseconds, 4, 5)
    if (
        parsed is None
        or type(proven_free) is not bool
        or not functions.is_uuid(lease)
        or not _Debt(eraser, releaser).is_valid
    ):
        return (CallResult(Outcome.INVALID, errno.EINVAL),)
    allows = permission(parsed)
    return _run(
        parsed,
        epoch,
        milliseconds,
        lambda each: guarded(
            _give_back_recorded,
            *(each, lease, proven_free),
            _Debt(eraser, releaser),
            allows,
        ),
    )


@privsep.base.entrypoint
def reserve(
    group: int,
    targets: tuple[tuple[object, ...], ...],
    epoch: int,
    milliseconds: int,
    lease: str,
    use: str,
    instead_of: str,
    eraser: str = "",
    releaser: str = "",
    node: str = "",
) -> tuple[tuple[str, int, str, str], ...]:
    """Record functions for a lease without changing their binding.

    If a record names another lease, none is changed.

    :param targets: as for :func:`take`.
    :param lease: canonical UUID.
    :param use: a :class:`~os_acc.privsep.record.FunctionUse`.
    :param instead_of: the lease whose records this lease takes over, with their
        driver and override. :data:`record.UNREADABLE`: take over damaged
        records. '' for none.
    :param eraser: as for :func:`take`, as are ``releaser`` and ``node``.
    """
    parsed = parse(group, targets, epoch, milliseconds, 2, 5)
    if (
        parsed is None
        or not functions.is_uuid(lease)
        or type(use) is not str
        or use not in set(FunctionUse)
        or not record.is_lease(instead_of)
        or not _Debt(eraser, releaser, node).is_valid
    ):
        return (CallResult(Outcome.INVALID, errno.EINVAL),)
    allows = permission(parsed)
    return _run(
        parsed,
        epoch,
        milliseconds,
        lambda each: (
            claim(parsed, each, lease, instead_of)
            or guarded(
                _reserve_allowed,
                *(each, lease, FunctionUse(use), instead_of),
                _Debt(eraser, releaser, node),
                allows,
            )
        ),
    )


@privsep.base.entrypoint
def forget(
    numbers: tuple[tuple[int, ...], ...], epoch: int, milliseconds: int, lease: str
) -> tuple[tuple[str, int, str, str], ...]:
    """Remove the records of a lease that no longer uses its functions.

    A function that its driver still offers to a guest is refused: :func:`give_back`
    removes that record. A function without a record, or with a record of another lease,
    stays unchanged.

    :param numbers: addresses, as four numbers each.
    :param lease: canonical UUID.
    """
    if (
        not isinstance(numbers, tuple | list)
        or not numbers
        or not functions.is_number(epoch, worker.EPOCH_LIMIT)
        or not functions.is_deadline(milliseconds)
        or not functions.is_uuid(lease)
    ):
        return (CallResult(Outcome.INVALID, errno.EINVAL),)
    parsed = [functions.parse_address(parts) for parts in numbers]
    addresses = [address for address in parsed if address is not None]
    if len(set(addresses)) != len(parsed):
        return (CallResult(Outcome.INVALID, errno.EINVAL),)
    # Lock no others: a caller may name any address.
    recorded = [
        each
        for each in addresses
        if record.exists(each)
        or (record.copies_of(each, lease) and functions.exists(each))
    ]
    for each in set(addresses).difference(recorded):
        # Of a device that has left the host, and has no lock.
        record.remove_copies(each, lease)
    found: dict[PciAddress, CallResult] = {}
    if recorded:
        answers = worker.run(
            recorded,
            epoch,
            milliseconds / 1000,
            lambda index: _forget(recorded[index], lease),
        )
        found = dict(zip(recorded, answers, strict=True))
    return tuple(found.get(each, CallResult(Outcome.OK)) for each in addresses)


def _run(
    targets: Sequence[BindTarget],
    epoch: int,
    milliseconds: int,
    step: Callable[[BindTarget], CallResult],
    check: Callable[[BindTarget], CallResult] | None = None,
) -> tuple[CallResult, ...]:
    # None is changed if another one of the call is missing.
    missing = [not functions.exists(target.address) for target in targets]
    if any(missing):
        gone = CallResult(Outcome.GONE, errno.ENODEV, "identity")
        return tuple(
            gone if each else CallResult(Outcome.UNREACHED) for each in missing
        )
    return worker.run(
        [target.address for target in targets],
        epoch,
        milliseconds / 1000,
        lambda index: step(targets[index]),
        check=check and (lambda index: check(targets[index])),
    )


def _is_taken(target: BindTarget, lease: str) -> bool:
    is_on = functions.driver(target.address) == _requested(target)
    return is_on and record.lease_of(target.address, target.identity, lease) == lease


def _check_take(
    target: BindTarget,
    lease: str,
    allows: Permission,
    claims: contextlib.ExitStack,
    targets: Sequence[BindTarget],
) -> CallResult:
    """Check that a function can be taken, before the first one is changed.

    :param claims: keeps the disks of the functions open.
    :param targets: all functions of the call.
    """
    # A function that is already taken stays so after leaving device_spec.
    if _is_taken(target, lease):
        return CallResult(Outcome.OK)
    if is_denied(target, allows) or not _is_named_driver(target, targets):
        return rootconf.denied()
    address, driver = target.address, _requested(target)
    # Also of a function on its driver: the kernel has no lock against new ones.
    if (found_parts := functions.parts(address)) is not None:
        return found_parts
    if (found := functions.driver(address)) == driver:
        return CallResult(Outcome.OK)
    if not is_vfio_driver(driver):
        return CallResult(Outcome.REFUSED, errno.EPERM, "driver", found)
    node = dfl.held(address)
    if node is not None:
        return CallResult(Outcome.IN_USE, errno.EBUSY, node)
    if not functions.has_driver(driver):
        return CallResult(Outcome.REFUSED, errno.ENODEV, "driver", found)
    claims.enter_context(disks.claimed(functions.directory(address)))
    return CallResult(Outcome.OK)


def _is_named_driver(target: BindTarget, targets: Sequence[BindTarget]) -> bool:
    """Return whether root's configuration allows the driver that is requested.

    A function beside the one that a guest gets is on vfio-pci.
    """
    root, driver = rootconf.last_read(), _requested(target)
    return root.names_driver(target.address, driver) or (
        driver == VFIO_PCI
        and any(
            root.names_driver(each.address, _requested(each))
            for each in targets
            if each is not target
        )
    )


def _reserve_allowed(
    target: BindTarget,
    lease: str,
    use: FunctionUse,
    instead_of: str,
    debt: _Debt,
    allows: Permission,
) -> CallResult:
    found = record.lease_of(target.address, target.identity, lease, instead_of)
    if found is None and is_denied(target, allows):
        return rootconf.denied()
    return _reserve(target, lease, use, debt, instead_of)


def _reserve(
    target: BindTarget,
    lease: str,
    use: FunctionUse,
    debt: _Debt,
    instead_of: str = "",
) -> CallResult:
    try:
        found = record.of(target.address, target.identity, lease, instead_of)
    except record.RecordUnclear:
        found = None
    if found is None:
        found = record.present(target.address, target.identity, lease, use)
    serial = found.serial or target.serial or functions.serial(target.address)
    # A guest's function is on its driver until it is restored: see _forget().
    if FunctionUse.GUEST in (found.use, use):
        use = FunctionUse.GUEST
    first = found.first if found.lease == lease else found.first or found.lease
    record.write(
        dataclasses.replace(
            found,
            lease=lease,
            use=use,
            eraser=debt.eraser or found.eraser,
            releaser=debt.releaser or found.releaser,
            first=first,
            serial=serial,
            node=debt.node or found.node,
        )
    )
    if found.lease != lease:
        # The serial number may have been unknown before: the copy had another name.
        record.remove_copies(target.address, found.lease)
    return CallResult(Outcome.OK)


def _forget(address: PciAddress, lease: str) -> CallResult:
    try:
        found = record.read(address)
        if found is None or found.lease != lease:
            record.remove_copies(address, lease)
            return CallResult(Outcome.OK)
        if (
            found.use == FunctionUse.GUEST
            and functions.identity(address) == found.identity
            and functions.may_be_a_guests(address, driver := functions.driver(address))
        ):
            return CallResult(Outcome.REFUSED, errno.EBUSY, "record", driver)
        record.remove(address)
    except record.RecordUnclear:
        # The record may belong to another lease: an operator decides.
        return CallResult(Outcome.OK)
    except OSError as error:
        return refused(error)
    return CallResult(Outcome.OK)


def _take(
    target: BindTarget, lease: str, debt: _Debt, targets: Sequence[BindTarget]
) -> CallResult:
    result = _bind(target, lease, debt)
    is_done = result.outcome == Outcome.OK and target is targets[-1]
    if is_done and not restoring.held(target.group):
        # Proves that the same is possible after the guest.
        for each in targets:
            if functions.resets_with_bus(each.address):
                restoring.reset_bus(each.address)
    return result


def _bind(target: BindTarget, lease: str, debt: _Debt) -> CallResult:
    address, driver = target.address, _requested(target)
    if (found := functions.driver(address)) == driver:
        return _reserve(target, lease, FunctionUse.GUEST, debt)
    if not is_vfio_driver(driver):
        return CallResult(Outcome.REFUSED, errno.EPERM, "driver", found)
    # Once more: the functions before this one may have taken long to unbind.
    if (found_parts := functions.parts(address)) is not None:
        return found_parts
    _reserve(target, lease, FunctionUse.GUEST, debt)
    functions.rebind(address, driver)
    return restoring.prove(address, driver, driver)


def _requested(target: BindTarget) -> str:
    return target.driver or VFIO_PCI


def _give_back_recorded(
    target: BindTarget,
    lease: str,
    proven_free: bool,
    debt: _Debt,
    allows: Permission,
) -> CallResult:
    try:
        found = record.of(target.address, target.identity, lease)
    except record.RecordUnclear:
        found = None
    if found is not None and found.lease != lease:
        return CallResult(Outcome.OK, 0, "record", found.lease)
    # A record of a guest's driver does not contain the earlier one that is requested.
    if found is not None and (
        not is_vfio_driver(found.driver) or target.driver == found.driver
    ):
        target = target._replace(driver=found.driver, override=found.override)
        result = restoring.restore(target, proven_free)
    elif (allowed := allows(target)) is None:
        result = restoring.restore(target, proven_free)
    else:
        result = _give_to_kernel(target, proven_free, allowed=allowed)
    if result.outcome != Outcome.OK:
        return result
    if found is not None:
        # Only forget() ends an erasure that is on record.
        debt = debt._replace(eraser=debt.eraser or found.eraser, node=found.node)
    if not debt.eraser and not debt.releaser:
        record.remove_copies(target.address, lease)
        record.remove(target.address)
    elif found is not None or not is_denied(target, allows):
        # A record permits steps: none is made of a function that may not be taken.
        fresh = record.present(target.address, target.identity, lease, FunctionUse.HOST)
        serial = target.serial or fresh.serial
        if found is not None:
            fresh, serial = dataclasses.replace(fresh, first=found.first), found.serial
        record.write(dataclasses.replace(fresh, serial=serial, **debt._asdict()))
    return result


def _give_to_kernel(
    target: BindTarget, proven_free: bool, *, allowed: bool
) -> CallResult:
    """Let the kernel choose the driver of a function without a record.

    The record is lost or damaged.
    """
    address, driver = target.address, functions.driver(target.address)
    # Checked before reading the override, which blocks while a held function is
    # being removed.
    held = None if proven_free else restoring.held(target.group)
    if held is not None:
        return held
    if (driver, functions.override(address)) == (target.driver, target.override):
        return CallResult(Outcome.OK)
    is_guests = is_vfio_driver(driver)
    if not allowed or not (is_guests or driver == "") or target.override:
        return rootconf.denied(driver)
    if is_guests:
        restoring.reset(address)
    functions.set_override(address, "")
    functions.unbind(address)
    if target.driver:
        functions.probe(address)
    return restoring.prove(address, target.driver, "")
