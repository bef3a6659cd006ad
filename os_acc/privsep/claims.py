# SPDX-License-Identifier: Apache-2.0

"""Leases that have a device, by the helper's records of this boot and their copies.

A copy applies to the device with the recorded serial number, at any address. While no
device shows that number, it applies to every device of the model without a readable
number, and to the PF of a VF: the data of a VF that is gone is on the device of the PF.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated, Any

from os_acc import privsep
from os_acc.objects.drivers import is_vfio_driver
from os_acc.objects.mdev import DeviceAddress
from os_acc.objects.pci import PciAddress, function_named, pf_of_part
from os_acc.privsep import pci_functions, privileged_conf, record, request, worker
from os_acc.privsep.outcome import OK, CallRefused, CallResult, Outcome
from os_acc.privsep.record import (
    UNREADABLE,
    DeviceRecord,
    FunctionUse,
    RecordCopy,
    RecordUnclear,
    copies,
    copy_names,
    identity_of,
    of_gone_vfs,
    of_model,
    serial_name,
    twin_of,
)
from os_acc.privsep.request import BindTarget, GroupRequest

Answers = tuple[CallResult, ...]


@privsep.base.entrypoint
def claimed() -> tuple[tuple[tuple[int | str, ...] | str, ...], ...]:
    """List the functions and slots that are recorded.

    :returns: for each its address as four numbers (a slot: parent, type and number),
        the uuid of the lease (:data:`.record.UNREADABLE` if the record is damaged),
        :class:`.FunctionUse`, prior driver and prior override, the plugins that have to
        erase it and to release it ('' for none), the node and the serial number. The
        record of a function, or of a parent, that was replaced by another one is left
        out. If it is uncertain whether a function is the one to erase, its plugins are
        ''.
    """
    found = (_listed(address) for address in record.addresses())
    here = [each for each in found if each is not None]
    # Those of this boot have precedence, then those that are certain.
    listed = (line for each in copies() for line in _listed_copy(each))
    last = sorted(listed, key=lambda line: not line[5])
    return tuple({each[0]: each for each in (*reversed(last), *here)}.values())


@dataclasses.dataclass(frozen=True, slots=True)
class TakeRequest(GroupRequest):
    """Functions that a lease takes.

    The driver of a target is a variant of vfio-pci, or the present one; '' stands for
    vfio-pci.

    :ivar lease: canonical UUID.
    :ivar eraser: the plugin that has to erase them afterwards; '' for none.
    :ivar releaser: the plugin that has to release them afterwards; '' for none.
    :ivar node: the compute node whose lease it is; '' if unknown.
    :ivar asks_migration: whether the last answer has that of VFIO about migration.
    """

    targets: Annotated[tuple[BindTarget, ...], request.targets(2, 3, 5)]
    lease: request.Uuid
    eraser: request.Name = ""
    releaser: request.Name = ""
    node: request.Text = ""
    asks_migration: request.Flag = False


@dataclasses.dataclass(frozen=True, slots=True)
class ReserveRequest(GroupRequest):
    """Functions to be recorded for a lease; see :class:`TakeRequest`.

    :ivar instead_of: the lease whose records this lease takes over, with their driver
        and override. :data:`.record.UNREADABLE`: take over damaged records. '': none.
    """

    lease: request.Uuid
    use: Annotated[FunctionUse, request.of_kind(FunctionUse)]
    instead_of: Annotated[str, request.that(record.is_lease)]
    eraser: request.Name = ""
    releaser: request.Name = ""
    node: request.Text = ""


@dataclasses.dataclass(frozen=True, slots=True)
class ForgetRequest(request.Request):
    """Functions whose records of a lease are removed."""

    addresses: request.Addresses
    epoch: request.Epoch
    milliseconds: request.Milliseconds
    lease: request.Uuid

    def validate(self) -> None:
        """Check that each function is named once."""
        request.require(len(set(self.addresses)) == len(self.addresses))


@request.entrypoint(privsep.base, ReserveRequest, for_each=True)
def reserve(call: ReserveRequest) -> Answers:
    """Record functions for a lease without changing their binding.

    If a record names another lease, none is changed.
    """
    return run(call, partial(_reserve, call))


@request.entrypoint(privsep.base, ForgetRequest, for_each=True)
def forget(call: ForgetRequest) -> Answers:
    """Remove the records of a lease that no longer uses its functions.

    A function that its driver still offers to a guest is refused: its record ends with
    :func:`.binding.give_back`. One without a record of the lease stays unchanged.
    """
    # Lock no others: a caller may name any address. Without a record as well, the epoch
    # refuses a step of the lease that another helper has not begun.
    locked = [
        each
        for each in call.addresses
        if record.exists(each) or pci_functions.exists(each)
    ]
    for each in set(call.addresses).difference(locked):
        record.remove_copies(each, call.lease)
    found: dict[PciAddress, CallResult] = {}
    if locked:
        answers = worker.run(
            locked,
            call.epoch,
            call.milliseconds / 1000,
            lambda index: _forget(locked[index], call.lease),
        )
        found = dict(zip(locked, answers, strict=True))
    return tuple(found.get(each, OK) for each in call.addresses)


def _listed(address: DeviceAddress) -> tuple[Any, ...] | None:
    try:
        own = record.read(address)
    except RecordUnclear:
        return _unreadable(address)
    here = None if own is None else identity_of(address)
    if own is None or here not in (None, own.identity) or _is_of_another(own):
        return None
    return _line(own)


def _listed_copy(copy: RecordCopy) -> Iterator[tuple[Any, ...]]:
    """List the functions to which a copy applies."""
    own = copy.record
    if own is not None and _is_of_this_boot(own):
        return
    there = of_model(copy.identity)
    found: list[DeviceAddress] = [e for e in there if copy.is_named(copy_names(e))]
    # It may be one of these. With only a release due, it has no data of a guest.
    is_unclear = not found and (own is None or own.eraser)
    unclear = [each for each in there if is_unclear and not pci_functions.serial(each)]
    if own is None:
        yield from map(_unreadable, (*found, *unclear))
        return
    if not found:
        bare = dataclasses.replace(own, use=FunctionUse.HOST, eraser="", releaser="")
        if own.eraser and (pf := pf_of_part(own.serial)):
            present = pci_functions.present()
            unclear += [each for each in present if pci_functions.serial(each) == pf]
        yield from (_line(_at(bare, each)) for each in unclear)
        found = [] if identity_of(own.address) else [own.address]
    yield from (_line(_at(own, each)) for each in found)


def _unreadable(address: DeviceAddress) -> tuple[Any, ...]:
    return (address.parts, UNREADABLE, "", "", "", "", "", "", "")


def _line(own: DeviceRecord) -> tuple[Any, ...]:
    binding = str(own.use), own.driver, own.override
    plugins = own.eraser, own.releaser
    return (own.address.parts, own.lease, *binding, *plugins, own.node, own.serial)


def record_of(
    address: DeviceAddress, identity: tuple[int, ...], *mine: str
) -> DeviceRecord | None:
    """Return the record of a device, if it has this identity.

    :param mine: leases that had the device at this address before a reboot, or before
        devices were exchanged; its serial number may prove to be another one.
    :raises RecordUnclear: the record is damaged.
    """
    own = record.read(address)
    is_same = own is not None and own.identity == identity
    if own and is_same and (own.lease in mine or not _is_of_another(own)):
        return own
    found = copies(identity)
    if not found or not isinstance(address, PciAddress):
        return None
    names = copy_names(address)
    named = next((each for each in found if each.is_named(names)), None)
    if named is not None:
        if named.record is None:
            raise RecordUnclear(address)
        return _at(named.record, address, FunctionUse.HOST)
    for each in (e.record for e in found if e.identity == identity):
        if each and each.lease in mine and each.address == address:
            return _at(each, address, FunctionUse.HOST)
    return None


def sound_record_of(
    address: DeviceAddress, identity: tuple[int, ...], *mine: str
) -> DeviceRecord | None:
    """Return the record of a device, as :func:`record_of`; None also if damaged."""
    try:
        return record_of(address, identity, *mine)
    except RecordUnclear:
        return None


def lease_of(
    address: DeviceAddress, identity: tuple[int, ...], *mine: str, serial: str = ""
) -> str | None:
    """Return the lease for which a device is, or may be, recorded, or None.

    :param mine: as for :func:`record_of`.
    :param serial: of the device that is meant, wherever it is; '' if unknown.
    :returns: :data:`.record.UNREADABLE`: the record is damaged.
    """
    try:
        found = record_of(address, identity, *mine)
    except RecordUnclear:
        return UNREADABLE
    if found is not None:
        return found.lease
    if serial and (lease := lease_of_serial(identity, serial, *mine)) is not None:
        return lease
    if not isinstance(address, PciAddress):
        return None
    if shown := pci_functions.serial(address):
        return lease_of_serial(identity, shown, *mine)
    others = [each for each in copies(identity) if each.identity == identity]
    twins = of_model(identity) if others else ()
    there = {name for each in twins for name in copy_names(each)}
    for copy in (each.record for each in others if not each.is_named(there)):
        if copy is None:
            return UNREADABLE
        if copy.eraser and not _is_of_this_boot(copy):
            return copy.lease
    return None


def lease_of_serial(
    identity: tuple[int, ...], serial: str, *mine: str, unless_of: str | None = None
) -> str | None:
    """Return the lease whose data a device has, by its serial number, or None.

    :param mine: leases to which VFs of the device, which are gone, may have belonged.
    :param unless_of: a node whose leases are left out.
    :returns: :data:`.record.UNREADABLE`: the copy of its record is damaged.
    """
    wanted = [serial_name(identity, serial)]
    for copy in (e.record for e in copies(identity) if e.is_named(wanted)):
        if copy is None or copy.node != unless_of:
            return UNREADABLE if copy is None else copy.lease
    leases = (each.lease for each in of_gone_vfs(serial) if each.node != unless_of)
    return next((each for each in leases if each not in mine), None)


def is_recorded(address: DeviceAddress, identity: tuple[int, ...], *mine: str) -> bool:
    """Return whether a device itself is on record for one of these leases.

    Such a device needs no permission of root's configuration. A lease whose device may
    be another one (:func:`lease_of`) denies steps, and permits none.
    """
    try:
        found = record_of(address, identity, *mine)
    except RecordUnclear:
        return UNREADABLE in mine
    return found is not None and found.lease in mine


def check_claims(
    targets: Sequence[BindTarget], lease: str, instead_of: str = ""
) -> None:
    """Check before the first change that no other lease claims a function.

    The call holds the locks of all functions until it ends.

    :raises CallRefused: CLAIMED; CHANGED: a function shows another serial number than
        that of the lease. REFUSED, ENOTUNIQ: another drive shows it as well.
    """
    for each in targets:
        if twin := twin_of(each.address):
            raise CallRefused(Outcome.REFUSED, errno.ENOTUNIQ, "serial", str(twin))
        found = lease_of(*each[:2], lease, instead_of, serial=each.serial)
        if found not in (None, lease, instead_of):
            place = str(each.address)
            raise CallRefused(Outcome.CLAIMED, errno.EBUSY, place, str(found))
        if found != UNREADABLE:
            _check_serial(each, lease)


def _check_serial(target: BindTarget, lease: str) -> None:
    found = record_of(target.address, target.identity, lease)
    own = found.serial if found is not None and found.lease == lease else ""
    shown = pci_functions.serial(target.address)
    if shown and (own or target.serial) not in ("", shown):
        raise CallRefused(Outcome.CHANGED, errno.ESTALE, "serial", shown)
    if target.serial and not shown:
        # It names the copy of the record: that of another device is not to be named.
        others = map(pci_functions.serial, of_model(target.identity))
        if function_named(target.serial) or target.serial in others:
            raise CallRefused(Outcome.CHANGED, errno.ESTALE, "serial", "another device")


def run(
    call: GroupRequest, job: worker.Job, check: worker.Job | None = None
) -> Answers:
    """Run a job for each function of a call, unless one of them is missing."""
    addresses = call.addresses
    present = [pci_functions.exists(address) for address in addresses]
    if not all(present):
        gone = pci_functions.gone().result
        return tuple(
            CallResult(Outcome.UNREACHED) if each else gone for each in present
        )
    seconds = call.milliseconds / 1000
    return worker.run(addresses, call.epoch, seconds, job, check=check)


@contextlib.contextmanager
def guarded(target: BindTarget, group: int) -> Iterator[None]:
    """Check that a function is the expected one, before and after the block.

    If it is removed meanwhile, its replacement may have received the writes.

    :raises CallRefused: it is another one, in another IOMMU group, or a bridge.
    """
    address = target.address
    pci_functions.check_identity(address, target.identity)
    if (found := pci_functions.group(address)) != group:
        raise CallRefused(Outcome.CHANGED, 0, "iommu_group", str(found))
    if pci_functions.is_bridge(address):
        raise CallRefused(Outcome.REFUSED, errno.EPERM, "class", "a bridge")
    try:
        yield
    finally:
        try:
            pci_functions.check_identity(address, target.identity)
        except CallRefused as refusal:
            if refusal.result.outcome == Outcome.CHANGED:
                _let_go(address)
            raise


def _let_go(address: PciAddress) -> None:
    """Undo what a newly arrived function may have received."""
    with contextlib.suppress(OSError, CallRefused):
        if pci_functions.override(address):
            pci_functions.set_override(address, "")
            pci_functions.unbind(address)
            pci_functions.probe(address)


def _reserve(call: ReserveRequest, index: int) -> CallResult:
    target = call.targets[index]
    if index == 0:
        check_claims(call.targets, call.lease, call.instead_of)
    with guarded(target, call.group):
        mine = call.lease, call.instead_of
        root = privileged_conf.last_read()
        if not is_recorded(
            target.address, target.identity, *mine
        ) and root.denies_lease(target.address, call.addresses):
            raise privileged_conf.denied()
        record_target(call, target, call.use, call.instead_of)
    return OK


def record_target(
    call: TakeRequest | ReserveRequest,
    target: BindTarget,
    use: FunctionUse,
    instead_of: str = "",
) -> None:
    """Record a function for the lease of a call, before it is changed."""
    own = target.address, target.identity, call.lease
    found = sound_record_of(*own, instead_of) or record.present(*own, use)
    serial = found.serial or target.serial or pci_functions.serial(target.address)
    # A guest's function is on its driver until it is restored: see _forget().
    if FunctionUse.GUEST in (found.use, use):
        use = FunctionUse.GUEST
    first = found.first if found.lease == call.lease else found.first or found.lease
    record.write(
        dataclasses.replace(
            found,
            lease=call.lease,
            use=use,
            eraser=call.eraser or found.eraser,
            releaser=call.releaser or found.releaser,
            first=first,
            serial=serial,
            node=call.node or found.node,
        )
    )
    if found.lease != call.lease:
        # The serial number may have been unknown before: the copy had another name.
        record.remove_copies(target.address, found.lease)


def _forget(address: PciAddress, lease: str) -> CallResult:
    try:
        found = record.read(address)
    except RecordUnclear:
        # The record may belong to another lease: an operator decides.
        return OK
    if found is None:
        # It would count again without the copies.
        record.remove(address)
    if found is None or found.lease != lease:
        record.remove_copies(address, lease)
        # Of its VFs as well, whose addresses other functions may have now.
        for vf in of_gone_vfs(pci_functions.serial(address)):
            if vf.lease == lease:
                record.remove_copies(vf.address, lease)
        return OK
    if record.may_be_a_guests(found):
        driver = pci_functions.driver(address)
        raise CallRefused(Outcome.REFUSED, errno.EBUSY, "record", driver)
    record.remove(address)
    return OK


def _is_of_this_boot(copy: DeviceRecord) -> bool:
    """Return whether the device of a copy has its address, by a record of this boot."""
    try:
        found = record.read(copy.address)
    except RecordUnclear:
        return False
    return (
        found is not None
        and found.lease == copy.lease
        and identity_of(copy.address) == copy.identity
        and not _is_of_another(found)
    )


def _is_of_another(own: DeviceRecord) -> bool:
    """Return whether the device of a record is elsewhere, by the serials shown."""
    if not own.serial or not isinstance(own.address, PciAddress):
        return False
    if shown := pci_functions.serial(own.address):
        return shown != own.serial
    if is_vfio_driver(pci_functions.driver(own.address)):
        # The one that shows the number may be a twin. The plugin compares it later.
        return False
    return own.serial in map(pci_functions.serial, of_model(own.identity))


def _at(
    copy: DeviceRecord, address: DeviceAddress, use: FunctionUse | None = None
) -> DeviceRecord:
    """Return the record of a device after a reboot, which has ended its binding.

    :param use: until the device is taken again; None: that before the reboot.
    """
    driver = pci_functions.driver(address) if isinstance(address, PciAddress) else ""
    identity, use = identity_of(address) or copy.identity, use or copy.use
    return dataclasses.replace(
        copy, address=address, identity=identity, driver=driver, override="", use=use
    )
