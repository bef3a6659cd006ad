# SPDX-License-Identifier: Apache-2.0

"""The helper's own record of each function and slot that it has taken.

There is one file for each of them, beside the worker's locks: owned by root,
and removed at reboot. A record names the lease, and the driver and override that
the helper read before it changed them. It survives the loss of the store: a
device with a record is given to no other lease. Of mediated devices, only those
are recorded that a plugin has to release.

The record of a function that has to be erased has a copy that survives a reboot
(:mod:`.outstanding`). The copy applies to the device with the recorded serial number,
at any address. While no device shows that number, it applies to every device of the
model without a readable number.

The worker's child writes and removes records, under the device's lock. Like
the epoch, a record carries a checksum. It applies only to a function with the
identity that it names, or to a slot of such a parent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import errno
import json
import os
import zlib
from collections.abc import Iterator
from typing import Any

from os_acc import exception, privsep
from os_acc.objects.mdev import DeviceAddress, MdevSlot, in_order, parse_address
from os_acc.objects.pci import PciAddress
from os_acc.privsep import functions, kernel, outstanding, request
from os_acc.privsep.kernel import LOCKS, StateFile

#: Replaces the lease of a record that cannot be read.
UNREADABLE = "unreadable"
_SUFFIX = ".lease"
# Parts the names of a slot: no parent and no type has it in its name.
_SEPARATOR = "@"
_SLOT = "mdev"


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
    :ivar serial: of the function (:func:`.functions.serial`); '' if unknown.
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


@privsep.base.entrypoint
def claimed() -> tuple[tuple[tuple[int | str, ...] | str, ...], ...]:
    """List the functions and slots that are recorded.

    :returns: for each its address as four numbers (a slot: parent, type and number),
        the uuid of the lease (:data:`UNREADABLE` if the record is damaged),
        :class:`FunctionUse`, prior driver and prior override, the plugins that have to
        erase it and to release it ('' for none), the node and the serial number. The
        record of a function, or of a parent, that was replaced by another one is left
        out. No plugins are named for a function that is only possibly one that has to
        be erased.
    """
    found = (_listed(address) for address in _addresses())
    here = [each for each in found if each is not None]
    # Those of this boot have precedence, then those that are certain.
    copies = sorted(_listed_copies(), key=lambda each: not each[5])
    return tuple({each[0]: each for each in (*reversed(copies), *here)}.values())


def _listed(address: DeviceAddress) -> tuple[Any, ...] | None:
    try:
        record = read(address)
    except RecordUnclear:
        return _unreadable(address)
    here = None if record is None else identity_of(address)
    if record is None or here not in (None, record.identity) or _is_of_another(record):
        return None
    if here is None and record.serial and (record.eraser or record.releaser):
        # It may have been erased in another slot.
        name = outstanding.name_of(record.identity, record.serial)
        found = [each for key, _id, each in _copies(record.identity) if key == name]
        if not found or (found[0] and found[0].address != address):
            return None
    return _line(record)


def _listed_copies() -> Iterator[tuple[Any, ...]]:
    """List the functions to which copies apply."""
    for name, identity, copy in _copies():
        if copy is not None and _is_of_this_boot(copy):
            continue
        there = _of_model(identity)
        found: list[DeviceAddress] = [
            each for each in there if name in _names(each, identity)
        ]
        # It may be one of these. With only a release due, it has no data of a guest.
        is_unclear = not found and (copy is None or copy.eraser)
        unclear = [each for each in there if is_unclear and not functions.serial(each)]
        if copy is None:
            yield from map(_unreadable, (*found, *unclear))
            continue
        if not found:
            bare = dataclasses.replace(
                copy, use=FunctionUse.HOST, eraser="", releaser=""
            )
            yield from (_line(_at(bare, each)) for each in unclear)
            found = [] if identity_of(copy.address) else [copy.address]
        yield from (_line(_at(copy, each)) for each in found)


def _unreadable(address: DeviceAddress) -> tuple[Any, ...]:
    return (_parts(address), UNREADABLE, "", "", "", "", "", "", "")


def _line(record: DeviceRecord) -> tuple[Any, ...]:
    return (
        _parts(record.address),
        record.lease,
        str(record.use),
        record.driver,
        record.override,
        record.eraser,
        record.releaser,
        record.node,
        record.serial,
    )


def _parts(address: DeviceAddress) -> tuple[int | str, ...]:
    if isinstance(address, PciAddress):
        return address.parts
    return (address.type.parent, address.type.name, address.number)


def _addresses() -> list[DeviceAddress]:
    try:
        names = os.listdir(kernel.current.path(LOCKS))
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        if name.endswith(_SUFFIX):
            with contextlib.suppress(exception.InvalidInput):
                found.append(_address(name.removesuffix(_SUFFIX)))
    return sorted(found, key=in_order)


def _address(name: str) -> DeviceAddress:
    """Parse the name of a record, without its suffix.

    :raises InvalidInput: it is none.
    """
    prefix, *parts = name.split(_SEPARATOR)
    return parse_address("/".join(parts) if prefix == _SLOT else name)


def name_of(address: DeviceAddress) -> str:
    """Return the name of a device's lock, and of its record without the suffix."""
    if isinstance(address, PciAddress):
        return str(address)
    # No other file beside the locks has a name of this form.
    return _SEPARATOR.join((_SLOT, *map(str, _parts(address))))


def identity_of(address: DeviceAddress) -> tuple[int, ...] | None:
    """Return the identity of a function, or of a slot's parent; None if it is gone.

    That of a virtual parent is empty, whether it is there or not.
    """
    if isinstance(address, PciAddress):
        return functions.identity(address)
    parent = address.type.function
    return () if parent is None else functions.identity(parent)


def exists(address: DeviceAddress) -> bool:
    """Return whether a device has a record of this boot, readable or not."""
    return os.path.lexists(_file(address).path)


def read(address: DeviceAddress) -> DeviceRecord | None:
    """Return the record of a device in this boot, or None.

    :raises RecordUnclear: the record is damaged.
    :raises OSError: the record cannot be read.
    """
    if (text := _file(address).read()) is None:
        return None
    record = _parse(text)
    if record.address != address:
        raise RecordUnclear(address)
    return record


def _parse(text: str) -> DeviceRecord:
    """Return the record of a file.

    :raises RecordUnclear: it is damaged.
    """
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


def of(
    address: DeviceAddress, identity: tuple[int, ...], *mine: str
) -> DeviceRecord | None:
    """Return the record of a device, if it has this identity.

    :param mine: leases that had the device at this address before a reboot, or before
        devices were exchanged; its serial number may prove to be another one.
    :raises RecordUnclear: the record is damaged.
    """
    record = read(address)
    is_same = record is not None and record.identity == identity
    if record and is_same and (record.lease in mine or not _is_of_another(record)):
        return record
    copies = _copies(identity)
    if not copies or not isinstance(address, PciAddress):
        return None
    names = _names(address, identity)
    for name, _identity, copy in copies:
        if name in names:
            if copy is None:
                raise RecordUnclear(address)
            return _at(copy, address, FunctionUse.HOST)
    own = (each for _name, _identity, each in copies if each is not None)
    return next(
        (
            _at(each, address, FunctionUse.HOST)
            for each in own
            if each.lease in mine and each.address == address
        ),
        None,
    )


def lease_of(
    address: DeviceAddress, identity: tuple[int, ...], *mine: str, serial: str = ""
) -> str | None:
    """Return the lease for which a device is, or may be, recorded, or None.

    :param mine: as for :func:`of`.
    :param serial: of the device that is meant, wherever it is; '' if unknown.
    :returns: :data:`UNREADABLE`: the record is damaged.
    """
    try:
        found = of(address, identity, *mine)
    except RecordUnclear:
        return UNREADABLE
    if found is not None:
        return found.lease
    if serial and (lease := lease_of_serial(identity, serial)) is not None:
        return lease
    copies = _copies(identity)
    if not copies or not isinstance(address, PciAddress) or functions.serial(address):
        return None
    there = {name for each in _of_model(identity) for name in _names(each, identity)}
    for name, _identity, copy in copies:
        if name in there:
            continue
        if copy is None:
            return UNREADABLE
        if copy.eraser and not _is_of_this_boot(copy):
            return copy.lease
    return None


def lease_of_serial(
    identity: tuple[int, ...], serial: str, unless_of: str | None = None
) -> str | None:
    """Return the lease whose data a device has, by its serial number, or None.

    :param unless_of: a node whose leases are left out.
    :returns: :data:`UNREADABLE`: the copy of its record is damaged.
    """
    wanted = outstanding.name_of(identity, serial)
    for name, _identity, copy in _copies(identity):
        if name == wanted and (copy is None or copy.node != unless_of):
            return UNREADABLE if copy is None else copy.lease
    return None


def _copies(
    identity: tuple[int, ...] | None = None,
) -> list[tuple[str, tuple[int, ...], DeviceRecord | None]]:
    """Return the copies, each with its name and PCI identity; None: it is damaged."""
    found: list[tuple[str, tuple[int, ...], DeviceRecord | None]] = []
    for name, model, text in outstanding.texts(identity):
        try:
            found.append((name, model, _parse(text)))
        except RecordUnclear:
            found.append((name, model, None))
    return found


def _names(address: PciAddress, identity: tuple[int, ...]) -> tuple[str, ...]:
    """Return the names that the copy of a present function may have."""
    keys = filter(None, (functions.serial(address), str(address)))
    return tuple(outstanding.name_of(identity, key) for key in keys)


def _of_model(identity: tuple[int, ...]) -> list[PciAddress]:
    """Return the functions with a PCI identity."""
    return [
        each for each in functions.present() if functions.identity(each) == identity
    ]


def _is_of_this_boot(copy: DeviceRecord) -> bool:
    """Return whether the device of a copy has its address, by a record of this boot."""
    try:
        found = read(copy.address)
    except RecordUnclear:
        return False
    return (
        found is not None
        and found.lease == copy.lease
        and identity_of(copy.address) == copy.identity
        and not _is_of_another(found)
    )


def _is_of_another(record: DeviceRecord) -> bool:
    """Return whether the device of a record is elsewhere, by the serials shown."""
    if not record.serial or not isinstance(record.address, PciAddress):
        return False
    if shown := functions.serial(record.address):
        return shown != record.serial
    return record.serial in map(functions.serial, _of_model(record.identity))


def _at(
    copy: DeviceRecord, address: DeviceAddress, use: FunctionUse | None = None
) -> DeviceRecord:
    """Return the record of a device after a reboot, which has ended its binding.

    :param use: until the device is taken again; None: that before the reboot.
    """
    driver = functions.driver(address) if isinstance(address, PciAddress) else ""
    return dataclasses.replace(
        copy, address=address, driver=driver, override="", use=use or copy.use
    )


def present(
    address: PciAddress, identity: tuple[int, ...], lease: str, use: FunctionUse
) -> DeviceRecord:
    """Return a new record of a function, with its present binding."""
    driver, override = functions.driver(address), functions.override(address)
    serial = functions.serial(address)
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
    name = ""
    if isinstance(record.address, PciAddress) and (record.eraser or record.releaser):
        key = record.serial or str(record.address)
        name = outstanding.name_of(record.identity, key)
        outstanding.file_of(name).replace(text, durable=True)
    _file(record.address).replace(text)
    remove_copies(record.address, record.lease, keep=name)


def remove(address: DeviceAddress) -> None:
    """Remove the record of a device, if any, and its copy."""
    with contextlib.suppress(RecordUnclear):
        if (found := read(address)) is not None:
            remove_copies(address, found.lease)
    _file(address).remove()


def copies_of(address: DeviceAddress, lease: str) -> list[str]:
    """Return the names of the copies of a lease's records of a device."""
    own = [
        (name, copy.address)
        for name, _identity, copy in _copies()
        if copy is not None and copy.lease == lease
    ]
    if not own or not isinstance(address, PciAddress):
        return []
    identity = functions.identity(address)
    names = _names(address, identity) if identity else ()
    return [name for name, was in own if was == address or name in names]


def remove_copies(address: DeviceAddress, lease: str, keep: str = "") -> None:
    """Remove the copies of a lease's records of a device, but the one of this name."""
    for name in copies_of(address, lease):
        if name != keep:
            outstanding.file_of(name).remove()


def _file(address: DeviceAddress) -> StateFile:
    return StateFile(f"{LOCKS}/{name_of(address)}{_SUFFIX}")


def _check(payload: str) -> str:
    return f"{zlib.crc32(payload.encode()):08x}"


def _is_sound(record: DeviceRecord) -> bool:
    return (
        request.is_uuid(record.lease)
        and _is_identity(record.address, record.identity)
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


def _is_identity(address: DeviceAddress, identity: tuple[int, ...]) -> bool:
    if isinstance(address, MdevSlot) and address.type.function is None:
        return identity == ()
    return request.is_identity(identity)
