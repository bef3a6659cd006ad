# SPDX-License-Identifier: Apache-2.0

"""The helper's own record of each function and slot that it has taken.

There is one file for each of them, beside the worker's locks: owned by root,
and removed at reboot. A record names the lease, and the driver and override that
the helper read before it changed them. It survives the loss of the store: a
device with a record is given to no other lease (:mod:`.claims`). Of mediated devices,
only those are recorded that a plugin has to release.

The record of a function that has to be erased or released has a copy that survives a
reboot. It is named after the device's serial number if that is known, else after its
address: a reboot may move it. The copy is durable before a consumer gets the device.
Of a numbered drive, the vendor counts as well, but no other id: an update of its
firmware may change them.

The worker's child writes and removes records, under the device's lock. Like
the epoch, a record carries a checksum. It applies only to a function with the
identity that it names, or to a slot of such a parent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import errno
import fcntl
import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from os_acc import deadlines, exception
from os_acc.objects.mdev import DeviceAddress, MdevSlot, in_order, parse_address
from os_acc.objects.pci import PciAddress, lasting_ids, pf_of_part
from os_acc.privsep import kernel, pci_functions, privileged_conf, request
from os_acc.privsep.kernel import COPIES, LOCKS, StateFile

#: The directory of the marks that hide drives with data from udev (:mod:`.nvme.disks`).
MARKS: Final = f"{LOCKS}/erasing"
#: Replaces the lease of a record that cannot be read.
UNREADABLE = "unreadable"
_SUFFIX = ".lease"
# Separates the parts of a slot's name: no parent and no type contains it.
_SEPARATOR = "@"
_SLOT = "mdev"
_COPY: Final = re.compile(r"((?:[0-9a-f]{4}-){4}[0-9a-f]{4})@[0-9a-f]{32}", re.ASCII)


class FunctionUse(enum.StrEnum):
    """The use of a function by the consumer of its lease."""

    #: Through VFIO.
    GUEST = "guest"
    #: On the host, or not at all: its binding stays unchanged.
    HOST = "host"


class RecordUnclear(Exception):
    """The file is not a valid record."""


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceRecord:
    """One function or slot that is taken.

    :ivar lease: canonical UUID of the lease, and of the mediated device of a slot.
    :ivar identity: vendor, product, both subsystem ids, and revision; of a slot, those
        of its parent, and empty if that is virtual.
    :ivar driver: the driver before it was taken; '' for none.
    :ivar override: the prior ``driver_override``; '' for none.
    :ivar eraser: the plugin that has to erase the function before another guest gets
        it; '' for none.
    :ivar releaser: the plugin that has prepared the function, and has to release it;
        '' for none.
    :ivar first: the lease that the function was recorded for, if another one has taken
        over the record since; '' otherwise.
    :ivar serial: of the function (:func:`.pci_functions.serial`); '' if unknown.
    :ivar node: the compute node whose lease it is; '' if unknown.
    """

    lease: str
    address: DeviceAddress
    identity: tuple[int, ...]
    driver: str
    override: str
    use: FunctionUse
    eraser: str = ""
    releaser: str = ""
    first: str = ""
    serial: str = ""
    node: str = ""

    def shares_lease(self, other: DeviceRecord) -> bool:
        """Return whether both are of one place, and of one lease or its successors."""
        leases = {self.lease, self.first} & {other.lease, other.first}
        return self.address == other.address and bool(leases - {""})


class RecordCopy(NamedTuple):
    """The copy of a record that survives a reboot.

    :ivar record: None: it is damaged.
    """

    name: str
    identity: tuple[int, ...]
    record: DeviceRecord | None

    def is_named(self, names: Iterable[str]) -> bool:
        """Return whether it has one of these names (:func:`copy_names`)."""
        vendor, digest = self.name[:4], self.name.partition("@")[2]
        return not {self.name, f"{vendor}@{digest}"}.isdisjoint(names)


def addresses() -> list[DeviceAddress]:
    found = []
    for name in kernel.current.names(LOCKS):
        if name.endswith(_SUFFIX):
            with contextlib.suppress(exception.InvalidInput):
                found.append(_address(name.removesuffix(_SUFFIX)))
    return sorted(found, key=in_order)


def _address(name: str) -> DeviceAddress:
    prefix, *parts = name.split(_SEPARATOR)
    return parse_address("/".join(parts) if prefix == _SLOT else name)


def name_of(address: DeviceAddress) -> str:
    """Return the name of a device's lock, and of its record without the suffix."""
    if isinstance(address, PciAddress):
        return str(address)
    # No other file beside the locks has a name of this form.
    return _SEPARATOR.join((_SLOT, *map(str, address.parts)))


def identity_of(address: DeviceAddress) -> tuple[int, ...] | None:
    """Return the identity of a function, or of a slot's parent; None if it is gone.

    That of a virtual parent is empty, also once it is gone.
    """
    if isinstance(address, PciAddress):
        return pci_functions.identity(address)
    parent = address.type.function
    return () if parent is None else pci_functions.identity(parent)


def exists(address: DeviceAddress) -> bool:
    """Return whether a device has a record of this boot, readable or not."""
    return os.path.lexists(_file(address).path)


def read(address: DeviceAddress) -> DeviceRecord | None:
    """Return the record of a device in this boot, or None.

    Its copy is written before it, and removed before it. Once that names another place,
    the device has left, and the record does not count, unless a guest may have the
    device; nor does one of an empty place without a copy.

    :raises RecordUnclear: the record is damaged.
    """
    record = _read_own(address)
    if record is None or not (record.eraser or record.releaser):
        return record
    if not isinstance(address, PciAddress) or privileged_conf.foreign_copies():
        return record
    if record.eraser and not record.serial:
        # A worker that has read the number may have been killed after the copy.
        for own in (each.record for each in copies(record.identity)):
            if own and own.serial and own.shares_lease(record):
                return dataclasses.replace(record, serial=own.serial)
    copy = _read_copy(copy_name(record.identity, record.serial or str(address)))
    if copy is None:
        return record if pci_functions.exists(address) else None
    is_here = copy.record is None or copy.record.address == address
    return record if is_here or may_be_a_guests(record) else None


def may_be_a_guests(record: DeviceRecord) -> bool:
    """Return whether a guest may have the function in the place of a record."""
    place = record.address
    return (
        record.use == FunctionUse.GUEST
        and isinstance(place, PciAddress)
        and pci_functions.identity(place) == record.identity
        and pci_functions.may_be_a_guests(place, pci_functions.driver(place))
    )


def _read_own(address: DeviceAddress) -> DeviceRecord | None:
    if (text := _file(address).read()) is None:
        return None
    record = _parse(text)
    if record.address != address:
        raise RecordUnclear(address)
    return record


def _parse(text: str) -> DeviceRecord:
    check, _, payload = text.partition(" ")
    if check != _check(payload):
        raise RecordUnclear(text)
    try:
        # A later version may append values.
        lease, identity, driver, override, use, *rest = json.loads(payload)
        eraser, releaser, first, serial, name, node, *_ = rest
        record = DeviceRecord(
            *(lease, _address(name), tuple(identity), driver, override),
            *(FunctionUse(use), eraser, releaser, first, serial, node),
        )
    except (TypeError, ValueError, AttributeError, exception.InvalidInput) as error:
        raise RecordUnclear(text) from error
    if not _is_sound(record):
        raise RecordUnclear(text)
    return record


def copies(identity: tuple[int, ...] | None = None) -> list[RecordCopy]:
    """Return all copies that count, or those of the vendor of an identity.

    One without a number does not count beside one with a number, of the same place and
    lease, or its successors.
    """
    if privileged_conf.foreign_copies():
        return []
    found = _read_copies(identity)
    # A killed worker leaves the copy from before the serial number was known.
    with_serial = [own for _, _, own in found if own and own.serial]
    return [
        each
        for each in found
        if (own := each.record) is None
        or own.serial
        or not any(map(own.shares_lease, with_serial))
    ]


def _read_copies(identity: tuple[int, ...] | None = None) -> list[RecordCopy]:
    vendor = f"{identity[0]:04x}-" if identity else ""
    names = [e for e in kernel.current.names(COPIES) if e.startswith(vendor)]
    return [each for each in map(_read_copy, names) if each is not None]


def _read_copy(name: str) -> RecordCopy | None:
    # A killed worker may leave a new file that has no name of its own yet.
    if (match := _COPY.fullmatch(name)) is None:
        return None
    model = tuple(int(number, 16) for number in match[1].split("-"))
    path, own = _copy(name).path, None
    try:
        seen, text = os.lstat(path), kernel.current.read(path).strip()
        mode, owner = seen.st_mode, seen.st_uid
        if privileged_conf.not_roots(path, mode, owner, is_file=True) is None:
            own = _parse(text)
    except FileNotFoundError:
        return None
    except RecordUnclear:
        pass
    except OSError as error:
        # A bad block, or a directory: it damages this copy alone.
        if error.errno in exception.EXHAUSTED:
            raise
    return RecordCopy(name, model, own)


def copy_name(identity: tuple[int, ...], key: str) -> str:
    """Return the name of a device's copy.

    :param key: its serial number (:func:`.pci_functions.serial`), or its address.
    """
    digest = hashlib.sha256(key.encode()).hexdigest()[:32]
    return f"{'-'.join(f'{number:04x}' for number in identity)}@{digest}"


def serial_name(identity: tuple[int, ...], serial: str) -> str:
    """Return the part of the name of a copy that no update of a firmware changes."""
    return copy_name(lasting_ids(identity, serial), serial)


def copy_names(address: PciAddress) -> tuple[str, ...]:
    """Return the names that the copy of a present function may have."""
    identity = pci_functions.identity(address) or ()
    own, serial = copy_name(identity, str(address)), pci_functions.serial(address)
    return (serial_name(identity, serial), own) if serial else (own,)


def of_model(identity: tuple[int, ...]) -> list[PciAddress]:
    """Return the present functions of one model, and the other drives of its vendor.

    An update of the firmware may have changed the ids of a drive.
    """

    def may_be(address: PciAddress) -> bool:
        own = pci_functions.identity(address) or ()
        place = pci_functions.physical_function(address) or address
        is_drive = own[:1] == identity[:1] and pci_functions.controller(place)
        return own == identity or bool(is_drive)

    return list(filter(may_be, pci_functions.present()))


def twin_of(address: PciAddress) -> PciAddress | None:
    """Return another drive of the vendor that shows the number of a function, or None.

    The number of a VF is that of its PF. Two such drives cannot be told apart once they
    exchange their addresses.
    """
    place = pci_functions.physical_function(address) or address
    identity, shown = pci_functions.identity(place), pci_functions.serial(place)
    if identity is None or not shown:
        return None
    for each in of_model(identity):
        if each != place and pci_functions.serial(each) == shown:
            return each
    return None


def of_gone_vfs(serial: str) -> list[DeviceRecord]:
    """Return the copies of a PF's VFs that are gone and have to be erased.

    :param serial: of the PF (:func:`.pci_functions.serial`).
    """
    every = [each.record for each in copies()] if serial else []
    found = [e for e in every if e and e.eraser and pf_of_part(e.serial) == serial]
    models = {each.identity for each in found}
    there = {pci_functions.serial(vf) for each in models for vf in of_model(each)}
    return [each for each in found if each.serial not in there]


def present(
    address: PciAddress, identity: tuple[int, ...], lease: str, use: FunctionUse
) -> DeviceRecord:
    """Return a new record of a function, with its present binding."""
    driver, override = pci_functions.driver(address), pci_functions.override(address)
    serial = pci_functions.serial(address)
    return DeviceRecord(lease, address, identity, driver, override, use, serial=serial)


def write(record: DeviceRecord) -> None:
    """Write or replace the record of a device, and its copy if it has to be erased.

    :raises OSError: the record cannot be written, for lack of space for example.
    """
    if not _is_sound(record):
        # A binding that cannot be restored must not be changed.
        raise OSError(errno.EINVAL, "not a driver's name", "driver")
    payload = json.dumps(
        [
            *(record.lease, record.identity, record.driver, record.override),
            *(record.use, record.eraser, record.releaser, record.first),
            *(record.serial, name_of(record.address), record.node),
        ]
    )
    text = f"{_check(payload)} {payload}\n"
    if len(text) > kernel.LONGEST:
        raise OSError(errno.EINVAL, "the record would be too long to read", "record")
    name = ""
    if isinstance(record.address, PciAddress) and (record.eraser or record.releaser):
        key = record.serial or str(record.address)
        name = copy_name(record.identity, key)
        # Also of the drive before an update of its firmware; it may be damaged.
        same = [serial_name(record.identity, record.serial)] if record.serial else []
        before = [e for e in copies(record.identity) if e.is_named(same)]
        for own in (each.record for each in before):
            _end_others(own, record.address)
        _copy(name).replace(text, durable=True)
        for each in before:
            if each.name != name:
                _copy(each.name).remove(durable=True)
    _file(record.address).replace(text)
    remove_copies(record.address, record.lease, keep=name)


def remove(address: DeviceAddress) -> None:
    """Remove the record of a device, if any, and its copy."""
    with contextlib.suppress(RecordUnclear):
        if (found := read(address)) is not None:
            remove_copies(address, found.lease)
            shown = isinstance(address, PciAddress) and pci_functions.serial(address)
            if shown and found.serial not in ("", shown):
                # Another drive is in the slot: udev may look at it.
                StateFile(f"{MARKS}/{address}").remove()
    _file(address).remove()


def remove_copies(address: DeviceAddress, lease: str, keep: str = "") -> None:
    """Remove the copies of a lease's records of a device, but the one of this name.

    Remove them also at the place that the device has left.
    """
    own = [
        (each, each.record)
        for each in _read_copies()
        if each.record is not None and each.record.lease == lease
    ]
    if not own or not isinstance(address, PciAddress):
        return
    names = copy_names(address)
    places = {address, *(was.address for each, was in own if each.is_named(names))}
    for each, was in own:
        if was.address in places and each.name != keep:
            _end_others(was, address, keep)
            _copy(each.name).remove(durable=True)


def _end_others(copy: DeviceRecord | None, now: PciAddress, keep: str = "") -> None:
    """Remove what the copy of a drive replaces, while it is still there.

    :param now: the address of the drive.
    :param keep: the name of a copy that stays.
    :raises OSError: see :func:`_leave`.
    """
    if copy is None or not copy.serial:
        return
    for each, _, own in _read_copies(copy.identity):
        if own and not own.serial and own.shares_lease(copy) and each != keep:
            _copy(each).remove(durable=True)
    if copy.address != now and isinstance(copy.address, PciAddress):
        _leave(copy.address, copy)


def _leave(place: PciAddress, copy: DeviceRecord) -> None:
    """Remove the record of this boot, and the mark, at the place of a copy's drive.

    A call that holds the lock of the place may write, or remove, the record itself.

    :raises OSError: EBUSY: there is such a call, and the record has no number: without
        the copy, it would claim the drive that is there now.
    """
    path = kernel.current.path(LOCKS, name_of(place))
    try:
        lock = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    with os.fdopen(lock, "rb"), contextlib.suppress(RecordUnclear):
        is_locked = deadlines.lock_file(lock, fcntl.LOCK_EX, 0.0)
        own = _read_own(place)
        if not own or not own.shares_lease(copy) or own.serial not in ("", copy.serial):
            return
        if own.serial and may_be_a_guests(own):
            # The drive of the copy is a twin.
            return
        if not is_locked and not own.serial:
            raise OSError(errno.EBUSY, "in use", f"{name_of(place)}{_SUFFIX}")
        if is_locked:
            # The mark may be that of another drive with data, which is there now.
            there = copy_names(place)
            if not any(each.is_named(there) for each in copies()):
                StateFile(f"{MARKS}/{place}").remove()
            _file(place).remove()


def discard(address: PciAddress, identity: tuple[int, ...], serial: str) -> None:
    """Remove the new copy that a killed worker has left without a name of its own."""
    key = serial or pci_functions.serial(address) or str(address)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{_copy(copy_name(identity, key)).path}.new")


def _file(address: DeviceAddress) -> StateFile:
    return StateFile(f"{LOCKS}/{name_of(address)}{_SUFFIX}")


def _copy(name: str) -> StateFile:
    return StateFile(f"{COPIES}/{name}")


def _check(payload: str) -> str:
    return f"{zlib.crc32(payload.encode()):08x}"


def _is_sound(record: DeviceRecord) -> bool:
    address = record.address
    is_virtual = isinstance(address, MdevSlot) and address.type.function is None
    return (
        request.is_uuid(record.lease)
        and (request.is_identity(record.identity) or is_virtual)
        and (record.identity == () or not is_virtual)
        and request.is_driver_name(record.driver)
        and request.is_driver_name(record.override)
        and request.is_driver_name(record.eraser)
        and request.is_driver_name(record.releaser)
        and (record.first == "" or request.is_uuid(record.first))
        and type(record.serial) is str
        and request.is_text(record.node)
    )


def is_lease(value: object) -> bool:
    """Return whether a value names the lease of a record, or none."""
    is_none = type(value) is str and value in ("", UNREADABLE)
    return is_none or request.is_uuid(value)
