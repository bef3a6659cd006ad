# SPDX-License-Identifier: Apache-2.0

"""Create SR-IOV virtual functions (drivers/pci/iov.c)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from os_acc import privsep
from os_acc.objects.dfl import DRIVER
from os_acc.objects.pci import PciAddress
from os_acc.privsep import functions, kernel, rootconf, state_files, worker
from os_acc.privsep.outcome import CallResult, Outcome

_VF_LIMIT = 0xFFFF
_AUTOPROBE = "sriov_drivers_autoprobe"


@privsep.base.entrypoint
def set_num_vfs(
    parts: tuple[int, ...],
    identity: tuple[int, ...],
    count: int,
    epoch: int,
    milliseconds: int,
) -> tuple[str, int, str, str]:
    """Create exactly this many VFs on a PF without VFs.

    The kernel changes the number only through 0, and 0 removes the VFs from
    guests: a PF that has VFs is refused, and so is 0.
    """
    return on_pf(parts, identity, count, epoch, milliseconds, _set)


def on_pf(
    parts: object,
    identity: object,
    count: object,
    epoch: object,
    milliseconds: object,
    job: Callable[[PciAddress, int], CallResult],
) -> CallResult:
    """Check a call about a number of VFs, and do its job in a worker's child."""
    address = functions.parse_address(parts)
    if (
        address is None
        or not functions.is_identity(identity)
        or not functions.is_number(count, _VF_LIMIT)
        or not count
        or not functions.is_number(epoch, worker.EPOCH_LIMIT)
        or not functions.is_deadline(milliseconds)
    ):
        return CallResult(Outcome.INVALID, errno.EINVAL)
    pf, wanted, checked, root = address, count, tuple(identity), rootconf.current()

    def guarded(_index: int) -> CallResult:
        try:
            if found := functions.changed(pf, checked):
                return found
            if not root.allows_vfs(pf, wanted):
                return rootconf.denied(wanted)
            return job(pf, wanted)
        except functions.WithoutEffect as error:
            return CallResult(Outcome.NO_EFFECT, 0, error.attribute, error.observed)
        except OSError as error:
            # sriov_numvfs_store() answers ENOENT for want of a driver that makes VFs.
            driver = functions.driver(pf) if error.errno == errno.ENOENT else ""
            number, attribute = error.errno or errno.EIO, functions.attribute(error)
            return CallResult(Outcome.REFUSED, number, attribute, driver)

    return worker.run([address], epoch, milliseconds / 1000, guarded)[0]


def _create(address: PciAddress, count: int) -> None:
    """Create VFs without binding host drivers to them: they are for guests.

    A driver that binds a fresh VF but finds it not ready may unbind at any
    moment, and network drivers would create new interfaces on the host. On an
    FPGA card, however, only the VF's driver shows the contents of its port.
    """
    if functions.driver(address) == DRIVER:
        functions.write(address, "sriov_numvfs", str(count))
        return
    _remember(address, functions.read(address, _AUTOPROBE))
    try:
        _set_autoprobe(address, "0")
        functions.write(address, "sriov_numvfs", str(count))
    finally:
        _put_back(address)


def _note(address: PciAddress) -> str:
    """Return the path of a note beside the lock, which lasts until a reboot."""
    return kernel.current.path(worker.LOCKS, f"{address}.autoprobe")


def _remember(address: PciAddress, value: str) -> None:
    state_files.create(_note(address), value)


def _put_back(address: PciAddress) -> None:
    """Restore the noted value, also after a worker was killed half-way."""
    try:
        value = kernel.current.read(_note(address))
    except FileNotFoundError:
        return
    # Empty: the worker was killed before it changed anything.
    if value:
        _set_autoprobe(address, value)
    os.unlink(_note(address))


def _set_autoprobe(address: PciAddress, value: str) -> None:
    functions.write(address, _AUTOPROBE, value)
    functions.check(address, _AUTOPROBE, value)


def _set(address: PciAddress, count: int) -> CallResult:
    _put_back(address)
    present = functions.count_vfs(address)
    if present == count:
        return CallResult(Outcome.OK)
    if present:
        return CallResult(Outcome.REFUSED, errno.EBUSY, "sriov_numvfs", str(present))
    _create(address, count)
    # The kernel only warns if a driver created another number of VFs.
    present = functions.count_vfs(address)
    if present != count:
        return CallResult(Outcome.NO_EFFECT, 0, "sriov_numvfs", str(present))
    return CallResult(Outcome.OK)
