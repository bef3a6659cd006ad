# SPDX-License-Identifier: Apache-2.0

"""The helper's own record of each function that it has taken.

One file for each function, beside the worker's locks: root's own, and gone
with the boot. A record names the lease, and the driver and override that the
helper itself read before it changed them. It outlives a store that is lost:
a function that a record names is given to no other lease.

A record is written and removed by the worker's child, under the function's
lock. It carries a check of itself, as the epoch does, and counts only for the
function whose identity it names.
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
from os_acc.privsep import functions, kernel, worker

#: Stands for the lease of a record that cannot be read.
UNREADABLE = "unreadable"
_SUFFIX = ".lease"


class FunctionUse(enum.StrEnum):
    """How the consumer of a lease uses a function."""

    #: By VFIO.
    GUEST = "guest"
    #: With the host, or not at all: its binding stays as it is.
    HOST = "host"


class RecordUnclear(Exception):
    """The file is not a record as this module writes them."""


@dataclasses.dataclass(frozen=True, slots=True)
class FunctionRecord:
    """One function that is taken.

    :ivar lease: canonical UUID of the lease.
    :ivar identity: vendor, product, the subsystem's two, and revision.
    :ivar driver: the driver before it was taken; '' for none.
    :ivar override: its ``driver_override`` then; '' for none.
    """

    lease: str
    address: PciAddress
    identity: tuple[int, ...]
    driver: str
    override: str
    use: FunctionUse


@privsep.base.entrypoint
def claimed() -> tuple[tuple[tuple[int, ...], str, str, str, str], ...]:
    """List the functions that are recorded in this boot.

    :returns: for each its address as four numbers, the uuid of the lease
        (:data:`UNREADABLE` where the record is damaged), :class:`FunctionUse`, prior
        driver and prior override. A record of another function that was in the same
        place is left out.
    """
    found = (_listed(address) for address in _addresses())
    return tuple(each for each in found if each is not None)


def _listed(
    address: PciAddress,
) -> tuple[tuple[int, ...], str, str, str, str] | None:
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
    )


def _addresses() -> list[PciAddress]:
    try:
        names = os.listdir(kernel.current.path(worker.LOCKS))
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        if name.endswith(_SUFFIX):
            with contextlib.suppress(exception.InvalidPciAddress):
                found.append(PciAddress.parse(name.removesuffix(_SUFFIX)))
    return sorted(found)


def exists(address: PciAddress) -> bool:
    """Whether there is a record of a function, readable or not."""
    return os.path.lexists(_path(address))


def read(address: PciAddress) -> FunctionRecord | None:
    """The record of a function; None where there is none.

    :raises Unclear: it is damaged.
    :raises OSError: it cannot be read.
    """
    try:
        text = kernel.current.read(_path(address))
    except FileNotFoundError:
        return None
    check, _, payload = text.removesuffix("\n").partition(" ")
    if check != _check(payload):
        raise RecordUnclear(address)
    try:
        lease, identity, driver, override, use = json.loads(payload)
        record = FunctionRecord(
            lease, address, tuple(identity), driver, override, FunctionUse(use)
        )
    except (TypeError, ValueError) as error:
        raise RecordUnclear(address) from error
    if not _is_sound(record):
        raise RecordUnclear(address)
    return record


def of(address: PciAddress, identity: tuple[int, ...]) -> FunctionRecord | None:
    """The record of a function, if it is the one with this identity.

    :raises Unclear: it is damaged.
    """
    record = read(address)
    return record if record is not None and record.identity == identity else None


def write(record: FunctionRecord) -> None:
    """Write the record of a function, in place of one that is there.

    :raises OSError: there is no space for it, for example.
    """
    if not _is_sound(record):
        # What cannot be restored is not taken away.
        raise OSError(errno.EINVAL, "not a driver's name", "driver")
    payload = json.dumps(
        [record.lease, record.identity, record.driver, record.override, record.use]
    )
    data = f"{_check(payload)} {payload}\n".encode("ascii")
    path = _path(record.address)
    fresh = f"{path}.new"
    fd = os.open(
        fresh,
        os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW,
        0o600,
    )
    try:
        if os.write(fd, data) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), fresh)
    finally:
        os.close(fd)
    # A worker that is killed leaves the old record, or the new one.
    os.rename(fresh, path)


def remove(address: PciAddress) -> None:
    """Forget that a function is taken."""
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
    )
