# SPDX-License-Identifier: Apache-2.0

"""Take functions to vfio-pci and give them back (drivers/pci/pci-driver.c).

The order is override, unbind, probe, in both directions: a crash between any
two of them leaves a function that the next probe brings to the driver that was
wanted, and to no other driver that matches it. The override that the function
had before is restored last, once its driver has it: clearing an override
rebinds nothing. To repeat a step from any of these states ends the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
from collections.abc import Callable, Sequence

from os_acc import privsep
from os_acc.objects.dfl import DRIVER
from os_acc.objects.pci import PciAddress
from os_acc.privsep import dfl, functions, kernel, record, rootconf, worker
from os_acc.privsep.functions import VFIO_PCI
from os_acc.privsep.outcome import CallResult, Outcome
from os_acc.privsep.record import FunctionRecord, FunctionUse
from os_acc.privsep.targets import BindTarget, Permission, parse, permission


@privsep.base.entrypoint
def take(
    group: int,
    targets: tuple[tuple[object, ...], ...],
    epoch: int,
    milliseconds: int,
    lease: str,
) -> tuple[tuple[str, int, str, str], ...]:
    """Bind all functions of an IOMMU group to vfio-pci, for a lease.

    Before any of them is touched, each is recorded with the driver and the
    override that it has. Where the record names another lease for one of
    them, or cannot be read, none is touched. Root's configuration has to name
    each of them, or another one of the call in the same slot.

    :param targets: for each function its address as four numbers and its
        identity as five (vendor, product, subsystem's two, revision).
    :param lease: canonical UUID.
    """
    parsed = parse(group, targets, epoch, milliseconds, 2)
    if parsed is None or not functions.is_uuid(lease):
        return (CallResult(Outcome.INVALID, errno.EINVAL),)
    allows = permission(parsed)
    return _run(
        parsed,
        epoch,
        milliseconds,
        lambda each: (
            _claim(parsed, each, lease, "")
            or _guarded(_take_allowed, each, lease, allows)
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
) -> tuple[tuple[str, int, str, str], ...]:
    """Return functions to the driver and override that they had before.

    That is what the record of the lease says. The caller's word counts where
    there is no record (the function was taken before this version was
    installed), where it is damaged, and where the function was on vfio-pci
    when it was recorded. A function that is recorded for another lease is left
    as it is, since this one has nothing there: the answer is ``ok``, and
    ``observed`` is that lease.

    Where root's configuration limits the callers, their word does not count. A
    function without a record then goes to the driver that the kernel chooses,
    if it is on vfio-pci or on no driver, and if the configuration names it.

    :param targets: as for :func:`take`, then driver and override, '' for
        none.
    :param proven_free: the caller has asked the ``inspect`` context, which
        may look where this one may not.
    :param lease: canonical UUID.
    """
    parsed = parse(group, targets, epoch, milliseconds, 4)
    if parsed is None or type(proven_free) is not bool or not functions.is_uuid(lease):
        return (CallResult(Outcome.INVALID, errno.EINVAL),)
    allows = permission(parsed)
    return _run(
        parsed,
        epoch,
        milliseconds,
        lambda each: _guarded(_give_back_recorded, each, lease, proven_free, allows),
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
) -> tuple[tuple[str, int, str, str], ...]:
    """Record functions for a lease, and leave their binding as it is.

    Where the record names another lease for one of them, none is changed.

    :param targets: as for :func:`take`.
    :param lease: canonical UUID.
    :param use: a :class:`~os_acc.privsep.record.FunctionUse`.
    :param instead_of: the lease whose records become those of this one; what
        they say of driver and override stays. :data:`record.UNREADABLE`:
        records that are damaged. '' for none.
    """
    parsed = parse(group, targets, epoch, milliseconds, 2)
    if (
        parsed is None
        or not functions.is_uuid(lease)
        or type(use) is not str
        or use not in set(FunctionUse)
        or not _is_lease(instead_of)
    ):
        return (CallResult(Outcome.INVALID, errno.EINVAL),)
    allows = permission(parsed)
    return _run(
        parsed,
        epoch,
        milliseconds,
        lambda each: (
            _claim(parsed, each, lease, instead_of)
            or _guarded(_reserve_allowed, each, lease, FunctionUse(use), allows)
        ),
    )


@privsep.base.entrypoint
def forget(
    places: tuple[tuple[int, ...], ...], epoch: int, milliseconds: int, lease: str
) -> tuple[tuple[str, int, str, str], ...]:
    """Remove the records of a lease that takes nothing from the host any more.

    A function that is still there on vfio-pci for a guest is refused:
    :func:`give_back` removes that record. One without a record, or with one of
    another lease, is left as it is.

    :param places: addresses, as four numbers each.
    :param lease: canonical UUID.
    """
    if (
        not isinstance(places, tuple | list)
        or not places
        or not functions.is_number(epoch, worker.EPOCH_LIMIT)
        or not functions.is_deadline(milliseconds)
        or not functions.is_uuid(lease)
    ):
        return (CallResult(Outcome.INVALID, errno.EINVAL),)
    parsed = [functions.parse_address(parts) for parts in places]
    addresses = [address for address in parsed if address is not None]
    if len(set(addresses)) != len(parsed):
        return (CallResult(Outcome.INVALID, errno.EINVAL),)
    # No lock file for what is not there.
    if not any(record.exists(address) for address in addresses):
        return (CallResult(Outcome.OK),) * len(addresses)
    return worker.run(
        addresses,
        epoch,
        milliseconds / 1000,
        lambda index: _forget(addresses[index], lease),
    )


def _run(
    targets: Sequence[BindTarget],
    epoch: int,
    milliseconds: int,
    step: Callable[[BindTarget], CallResult],
) -> tuple[CallResult, ...]:
    # No lock file for what is not there: four thousand million addresses
    # would fill the file system.
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
    )


def _is_lease(value: object) -> bool:
    """Whether a value names the lease of a record, or none."""
    return type(value) is str and (
        value in ("", record.UNREADABLE) or functions.is_uuid(value)
    )


def _claim(
    targets: Sequence[BindTarget], target: BindTarget, lease: str, instead_of: str
) -> CallResult | None:
    """Make sure, before the first function is touched, that none is another's.

    The call has the locks of all of them until it ends.
    """
    if target is not targets[0]:
        return None
    try:
        for each in targets:
            found = _lease_of(each)
            if found not in (None, lease, instead_of):
                return CallResult(
                    Outcome.CLAIMED, errno.EBUSY, str(each.address), found
                )
    except OSError as error:
        return _refused(error)
    return None


def _take_allowed(target: BindTarget, lease: str, allows: Permission) -> CallResult:
    # One that is taken already, and has left device_spec since, stays so.
    is_taken = functions.driver(target.address) == VFIO_PCI and _lease_of(target)
    if is_taken != lease and _is_denied(target, allows):
        return rootconf.denied()
    return _take(target, lease)


def _reserve_allowed(
    target: BindTarget, lease: str, use: FunctionUse, allows: Permission
) -> CallResult:
    if _lease_of(target) is None and _is_denied(target, allows):
        return rootconf.denied()
    return _reserve(target, lease, use)


def _is_denied(target: BindTarget, allows: Permission) -> bool:
    """Whether root's configuration keeps a function from all leases.

    A PF that is served in VFs is itself no device: see
    :mod:`os_acc.inventory.eligibility`.
    """
    allowed = allows(target)
    if allowed is None:
        return False
    return not allowed or rootconf.known().is_in_parts(target.address)


def _lease_of(target: BindTarget) -> str | None:
    """The lease for which a function is recorded; None where it is for none."""
    try:
        found = record.of(target.address, target.identity)
    except record.RecordUnclear:
        return record.UNREADABLE
    return found.lease if found else None


def _reserve(target: BindTarget, lease: str, use: FunctionUse) -> CallResult:
    try:
        found = record.of(target.address, target.identity)
    except record.RecordUnclear:
        found = None
    if found is None:
        found = FunctionRecord(
            lease,
            target.address,
            target.identity,
            functions.driver(target.address),
            functions.override(target.address),
            use,
        )
    # A guest's function is on vfio-pci until it is given back: see _forget().
    if FunctionUse.GUEST in (found.use, use):
        use = FunctionUse.GUEST
    record.write(dataclasses.replace(found, lease=lease, use=use))
    return CallResult(Outcome.OK)


def _forget(address: PciAddress, lease: str) -> CallResult:
    try:
        found = record.read(address)
        if found is None or found.lease != lease:
            return CallResult(Outcome.OK)
        if (
            found.use == FunctionUse.GUEST
            and functions.identity(address) == found.identity
            and functions.driver(address) == VFIO_PCI
        ):
            return CallResult(Outcome.REFUSED, errno.EBUSY, "record", VFIO_PCI)
        record.remove(address)
    except record.RecordUnclear:
        # It may be of another lease: an operator decides.
        return CallResult(Outcome.OK)
    except OSError as error:
        return _refused(error)
    return CallResult(Outcome.OK)


def _guarded(
    step: Callable[..., CallResult], target: BindTarget, *args: object
) -> CallResult:
    """Check that the function is what the caller believes, then do it."""
    try:
        refusal = _mismatch(target)
        if refusal is not None:
            return refusal
        result = step(target, *args)
    except OSError as error:
        result = _refused(error)
    try:
        return _exchange(target) or result
    except OSError as error:
        return _refused(error)


def _refused(error: OSError) -> CallResult:
    return CallResult(
        Outcome.REFUSED, error.errno or errno.EIO, functions.attribute(error)
    )


def _exchange(target: BindTarget) -> CallResult | None:
    """What has become of the function meanwhile, if it is another one.

    One that is pulled out in mid-step takes its files along; and what was
    written may have gone to another one in its place.
    """
    found = functions.changed(target.address, target.identity)
    if found is not None and found.outcome == Outcome.CHANGED:
        _let_go(target.address)
    return found


def _mismatch(target: BindTarget) -> CallResult | None:
    if found := functions.changed(target.address, target.identity):
        return found
    number = functions.group(target.address)
    if number != target.group:
        return CallResult(Outcome.CHANGED, 0, "iommu_group", str(number))
    if functions.is_bridge(target.address):
        return CallResult(Outcome.REFUSED, errno.EPERM, "class", "a bridge")
    return None


def _let_go(address: PciAddress) -> None:
    """Leave a function that has just come to the host as it came."""
    with contextlib.suppress(OSError):
        if functions.override(address):
            functions.set_override(address, "")
            functions.unbind(address)
            functions.probe(address)


def _take(target: BindTarget, lease: str) -> CallResult:
    address = target.address
    if functions.driver(address) == VFIO_PCI:
        return _reserve(target, lease, FunctionUse.GUEST)
    node = dfl.held(address)
    if node is not None:
        return CallResult(Outcome.IN_USE, errno.EBUSY, node)
    _reserve(target, lease, FunctionUse.GUEST)
    functions.rebind(address, VFIO_PCI)
    return _prove(address, VFIO_PCI, VFIO_PCI)


def _give_back_recorded(
    target: BindTarget, lease: str, proven_free: bool, allows: Permission
) -> CallResult:
    try:
        found = record.of(target.address, target.identity)
    except record.RecordUnclear:
        found = None
    if found is not None and found.lease != lease:
        return CallResult(Outcome.OK, 0, "record", found.lease)
    # A record of vfio-pci says nothing where the driver before that is asked for.
    if found is not None and (found.driver != VFIO_PCI or target.driver == VFIO_PCI):
        target = target._replace(driver=found.driver, override=found.override)
        result = _give_back(target, proven_free)
    elif (allowed := allows(target)) is None:
        result = _give_back(target, proven_free)
    else:
        result = _give_to_kernel(target, proven_free, allowed=allowed)
    if result.outcome == Outcome.OK:
        record.remove(target.address)
    return result


def _give_to_kernel(
    target: BindTarget, proven_free: bool, *, allowed: bool
) -> CallResult:
    """Let the kernel choose the driver of a function that nothing recorded.

    A version without records took it, or the record is damaged.
    """
    address, driver = target.address, functions.driver(target.address)
    # Before the override: of a held function that is pulled out, it waits.
    held = None if proven_free else _held(target.group)
    if held is not None:
        return held
    if (driver, functions.override(address)) == (target.driver, target.override):
        return CallResult(Outcome.OK)
    if not allowed or driver not in (VFIO_PCI, "") or target.override:
        return rootconf.denied(driver)
    if driver == VFIO_PCI:
        _reset(address)
    functions.set_override(address, "")
    functions.unbind(address)
    if target.driver:
        functions.probe(address)
    return _prove(address, target.driver, "")


def _give_back(target: BindTarget, proven_free: bool) -> CallResult:
    address = target.address
    # 1. No process may hold it: a write would wait for the holder. The link of
    #    the driver does not tell: a device that is being pulled out has lost it.
    if not proven_free:
        held = _held(target.group)
        if held is not None:
            return held
    if functions.driver(address) == VFIO_PCI:
        # 2. The next user finds nothing of this one. VFIO resets when the
        #    last holder closes, but tells nobody when that failed.
        _reset(address)
    node = None if target.driver == DRIVER else dfl.held(address)
    if node is not None:
        return CallResult(Outcome.IN_USE, errno.EBUSY, node)
    # 3. Back to the driver that had it; once more, should the first probe have
    #    had no effect.
    for _attempt in range(2):
        if functions.driver(address) != target.driver:
            _rebind(target)
    # 4. While its driver does not have it, its override keeps others away.
    if functions.driver(address) == target.driver:
        functions.set_override(address, target.override)
    return _prove(address, target.driver, target.override)


def _held(group: int) -> CallResult | None:
    error = kernel.current.probe_vfio_group(group)
    if error in (0, errno.ENOENT):
        return None
    if error == errno.EBUSY:
        return CallResult(Outcome.IN_USE, error, "vfio")
    return CallResult(Outcome.UNSURE, error, "vfio")


def _reset(address: PciAddress) -> None:
    try:
        functions.write(address, "reset", "1")
    except FileNotFoundError:
        # No method at all: the operator allowed such a device by name.
        return


def _rebind(target: BindTarget) -> None:
    if target.driver:
        functions.rebind(target.address, target.driver)
    else:
        # It had none: nothing probes it after the unbind, and it is as it was.
        functions.set_override(target.address, target.override)
        functions.unbind(target.address)


def _prove(address: PciAddress, driver: str, override: str) -> CallResult:
    found = functions.driver(address)
    if found != driver:
        return CallResult(Outcome.NO_EFFECT, 0, "driver", found)
    found = functions.override(address)
    if found != override:
        return CallResult(Outcome.NO_EFFECT, 0, "driver_override", found)
    return CallResult(Outcome.OK)
