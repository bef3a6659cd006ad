# SPDX-License-Identifier: Apache-2.0

"""The helper's own record of each function that it has taken.

There is one file for each function, beside the worker's locks: owned by root,
and removed at reboot. A record names the lease, and the driver and override that
the helper read before it changed them. It survives the loss of the store: a
function with a record is given to no other lease.

The worker's child writes and removes records, under the function's lock. Like
the epoch, a record carries a checksum. It applies only to a function with the
identity that it names.
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
from os_acc.objects.pci import PciAddress
from os_acc.privsep import functions, kernel, state_files, worker

#: Replaces the lease of a record that cannot be read.
UNREADABLE = "unreadable"
_SUFFIX = ".lease"


class FunctionUse(enum.StrEnum):
    """The use of a function by the consumer of its lease."""

    #: Through VFIO.
    GUEST = "guest"
    #: On the host, or not at all: its binding stays unchanged.
    HOST = "host"


class RecordUnclear(Exception):
    """The file is not a valid record."""


@dataclasses.dataclass(frozen=True, slots=True)
class FunctionRecord:
    """One function that is taken.

    :ivar lease: canonical UUID of the lease.
    :ivar identity: vendor, product, both subsystem ids, and revision.
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
    address: PciAddress
    identity: tuple[int, ...]
    driver: str
    override: str
    use: FunctionUse
    eraser: str = ""
    releaser: str = ""
    first: str = ""


@privsep.base.entrypoint
def claimed() -> tuple[tuple[tuple[int, ...] | str, ...], ...]:
    """List the functions that are recorded in this boot.

    :returns: for each its address as four numbers, the uuid of the lease
        (:data:`UNREADABLE` if the record is damaged), :class:`FunctionUse`, prior
        driver and prior override; then the plugins that have to erase it and to
        release it, if any. The record of a function that was replaced by another one
        is left out.
    """
    found = (_listed(address) for address in _addresses())
    return tuple(each for each in found if each is not None)


def _listed(address: PciAddress) -> tuple[tuple[int, ...] | str, ...] | None:
    try:
        record = read(address)
    except RecordUnclear:
        return (address.parts, UNREADABLE, "", "", "")
    if record is None or functions.identity(address) not in (None, record.identity):
        return None
    return (
        address.parts,
        record.lease,
        str(record.use),
        record.driver,
        record.override,
        # A client that was started before an upgrade expects no more than these.
        *_trimmed(record.eraser, record.releaser),
    )


def _trimmed(*values: str) -> tuple[str, ...]:
    """Return values without the empty ones at the end."""
    while values and not values[-1]:
        values = values[:-1]
    return values


def _addresses() -> list[PciAddress]:
    try:
        names = os.listdir(kernel.current.path(worker.LOCKS))
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        if name.endswith(_SUFFIX):
            with contextlib.suppress(exception.InvalidInput):
                found.append(PciAddress.parse(name.removesuffix(_SUFFIX)))
    return sorted(found)


def exists(address: PciAddress) -> bool:
    """Return whether a function has a record, readable or not."""
    return os.path.lexists(_path(address))


def read(address: PciAddress) -> FunctionRecord | None:
    """Return the record of a function, or None.

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
        # A newer os_acc may append values.
        lease, identity, driver, override, use, *more = json.loads(payload)
        record = FunctionRecord(
            lease, address, tuple(identity), driver, override, FunctionUse(use)
        )
        names = ("eraser", "releaser", "first")
        record = dataclasses.replace(record, **dict(zip(names, more, strict=False)))
    except (TypeError, ValueError) as error:
        raise RecordUnclear(address) from error
    if not _is_sound(record):
        raise RecordUnclear(address)
    return record


def of(address: PciAddress, identity: tuple[int, ...]) -> FunctionRecord | None:
    """Return the record of a function, if it has this identity.

    :raises RecordUnclear: the record is damaged.
    """
    record = read(address)
    return record if record is not None and record.identity == identity else None


def lease_of(address: PciAddress, identity: tuple[int, ...]) -> str | None:
    """Return the lease for which a function is recorded, or None.

    :returns: :data:`UNREADABLE`: the record is damaged.
    """
    try:
        found = of(address, identity)
    except RecordUnclear:
        return UNREADABLE
    return found.lease if found else None


def present(
    address: PciAddress, identity: tuple[int, ...], lease: str, use: FunctionUse
) -> FunctionRecord:
    """Return a new record of a function, with its present binding."""
    driver, override = functions.driver(address), functions.override(address)
    return FunctionRecord(lease, address, identity, driver, override, use)


def write(record: FunctionRecord) -> None:
    """Write or replace the record of a function.

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


def remove(address: PciAddress) -> None:
    """Remove the record of a function, if any."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_path(address))


def _path(address: PciAddress) -> str:
    return kernel.current.path(worker.LOCKS, f"{address}{_SUFFIX}")


def _check(payload: str) -> str:
    return f"{zlib.crc32(payload.encode()):08x}"


def _is_sound(record: FunctionRecord) -> bool:
    return (
        functions.is_uuid(record.lease)
        and functions.is_identity(record.identity)
        and functions.is_driver_name(record.driver)
        and functions.is_driver_name(record.override)
        and functions.is_driver_name(record.eraser)
        and functions.is_driver_name(record.releaser)
        and (record.first == "" or functions.is_uuid(record.first))
    )
