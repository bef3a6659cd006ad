# SPDX-License-Identifier: Apache-2.0

"""The helper's own record of each function and slot that it has taken.

There is one file for each of them, beside the worker's locks: owned by root,
and removed at reboot. A record names the lease, and the driver and override that
the helper read before it changed them. It survives the loss of the store: a
device with a record is given to no other lease. Of mediated devices, only those
are recorded that a plugin has to release.

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

from os_acc import exception, privsep
from os_acc.objects.mdev import DeviceAddress, MdevSlot, in_order, parse_address
from os_acc.objects.pci import PciAddress
from os_acc.privsep import functions, kernel, state_files

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


@privsep.base.entrypoint
def claimed() -> tuple[tuple[tuple[int | str, ...] | str, ...], ...]:
    """List the functions and slots that are recorded in this boot.

    :returns: for each its address as four numbers (a slot: parent, type and number),
        the uuid of the lease (:data:`UNREADABLE` if the record is damaged),
        :class:`FunctionUse`, prior driver and prior override, and the plugins that
        have to erase it and to release it ('' for none). The record of a function, or
        of a parent, that was replaced by another one is left out.
    """
    found = (_listed(address) for address in _addresses())
    return tuple(each for each in found if each is not None)


def _listed(address: DeviceAddress) -> tuple[tuple[int | str, ...] | str, ...] | None:
    try:
        record = read(address)
    except RecordUnclear:
        return (_parts(address), UNREADABLE, "", "", "", "", "")
    if record is None or identity_of(address) not in (None, record.identity):
        return None
    return (
        _parts(address),
        record.lease,
        str(record.use),
        record.driver,
        record.override,
        record.eraser,
        record.releaser,
    )


def _parts(address: DeviceAddress) -> tuple[int | str, ...]:
    if isinstance(address, PciAddress):
        return address.parts
    return (address.type.parent, address.type.name, address.number)


def _addresses() -> list[DeviceAddress]:
    try:
        names = os.listdir(kernel.current.path(state_files.LOCKS))
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
    """Return whether a device has a record, readable or not."""
    return os.path.lexists(_path(address))


def read(address: DeviceAddress) -> DeviceRecord | None:
    """Return the record of a device, or None.

    :raises RecordUnclear: the record is damaged.
    :raises OSError: the record cannot be read.
    """
    try:
        text = kernel.current.read(_path(address))
    except FileNotFoundError:
        return None
    check, _, payload = text.removesuffix("\n").partition(" ")
    if check != _check(payload):
        raise RecordUnclear(address)
    try:
        # A later version may append values.
        lease, identity, driver, override, use, eraser, releaser, first, *_ = (
            json.loads(payload)
        )
        record = DeviceRecord(
            *(lease, address, tuple(identity), driver, override, FunctionUse(use)),
            *(eraser, releaser, first),
        )
    except (TypeError, ValueError) as error:
        raise RecordUnclear(address) from error
    if not _is_sound(record):
        raise RecordUnclear(address)
    return record


def of(address: DeviceAddress, identity: tuple[int, ...]) -> DeviceRecord | None:
    """Return the record of a device, if it has this identity.

    :raises RecordUnclear: the record is damaged.
    """
    record = read(address)
    return record if record is not None and record.identity == identity else None


def lease_of(address: DeviceAddress, identity: tuple[int, ...]) -> str | None:
    """Return the lease for which a device is recorded, or None.

    :returns: :data:`UNREADABLE`: the record is damaged.
    """
    try:
        found = of(address, identity)
    except RecordUnclear:
        return UNREADABLE
    return found.lease if found else None


def present(
    address: PciAddress, identity: tuple[int, ...], lease: str, use: FunctionUse
) -> DeviceRecord:
    """Return a new record of a function, with its present binding."""
    driver, override = functions.driver(address), functions.override(address)
    return DeviceRecord(lease, address, identity, driver, override, use)


def write(record: DeviceRecord) -> None:
    """Write or replace the record of a device.

    :raises OSError: the record cannot be written, for lack of space for example.
    """
    if not _is_sound(record):
        # A binding that cannot be restored must not be changed.
        raise OSError(errno.EINVAL, "not a driver's name", "driver")
    payload = json.dumps(
        [
            *(record.lease, record.identity, record.driver, record.override),
            *(record.use, record.eraser, record.releaser, record.first),
        ]
    )
    text = f"{_check(payload)} {payload}\n"
    state_files.replace(_path(record.address), text)


def remove(address: DeviceAddress) -> None:
    """Remove the record of a device, if any."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_path(address))


def _path(address: DeviceAddress) -> str:
    return kernel.current.path(state_files.LOCKS, f"{name_of(address)}{_SUFFIX}")


def _check(payload: str) -> str:
    return f"{zlib.crc32(payload.encode()):08x}"


def _is_sound(record: DeviceRecord) -> bool:
    return (
        functions.is_uuid(record.lease)
        and _is_identity(record.address, record.identity)
        and functions.is_driver_name(record.driver)
        and functions.is_driver_name(record.override)
        and functions.is_driver_name(record.eraser)
        and functions.is_driver_name(record.releaser)
        and (record.first == "" or functions.is_uuid(record.first))
    )


def _is_identity(address: DeviceAddress, identity: tuple[int, ...]) -> bool:
    if isinstance(address, MdevSlot) and address.type.function is None:
        return identity == ()
    return functions.is_identity(identity)
