# SPDX-License-Identifier: Apache-2.0

"""Create SR-IOV virtual functions (drivers/pci/iov.c)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial

from os_acc import privsep
from os_acc.objects.drivers import DFL_DRIVER
from os_acc.objects.pci import PciAddress
from os_acc.privsep import claims, pci_functions, privileged_conf, request, worker
from os_acc.privsep.kernel import LOCKS, StateFile
from os_acc.privsep.outcome import OK, CallRefused, CallResult, Outcome, refused
from os_acc.privsep.record import UNREADABLE, RecordUnclear

_AUTOPROBE = "sriov_drivers_autoprobe"


class VfsRequest(request.CardRequest):
    """A number of VFs of a PF."""

    __slots__ = ()

    def validate(self) -> None:
        """Check that there is one."""
        request.require(self.count > 0)


@request.entrypoint(privsep.base, VfsRequest)
def set_num_vfs(call: VfsRequest) -> CallResult:
    """Create exactly this many VFs on a PF without VFs.

    The kernel changes the number only through 0, and 0 removes the VFs from
    guests: a PF that has VFs is refused, and so is 0.
    """
    return on_pf(call, _set)


def on_pf(
    call: VfsRequest, step: Callable[[PciAddress, int], CallResult]
) -> CallResult:
    """Do a step for VFs in a worker's child, if root and the leases allow it."""

    def job(_index: int) -> CallResult:
        pci_functions.check_identity(call.card, call.identity)
        if not privileged_conf.last_read().allows_vfs(call.card, call.count):
            raise privileged_conf.denied(call.count)
        check_whole(call.card, call.identity)
        return step(call.card, call.count)

    return worker.run([call.card], call.epoch, call.milliseconds / 1000, job)[0]


def check_whole(card: PciAddress, identity: tuple[int, ...]) -> None:
    """Check that no lease has a PF itself; the VFs of a lease that are gone may return.

    :raises CallRefused: CLAIMED.
    """
    try:
        own = claims.record_of(card, identity)
        lease = own.lease if own else ""
    except RecordUnclear:
        lease = UNREADABLE
    if lease:
        raise CallRefused(Outcome.CLAIMED, errno.EBUSY, str(card), lease)


def _create(address: PciAddress, count: int) -> None:
    """Create VFs without binding host drivers to them: they are for guests.

    A driver that binds a fresh VF but finds it not ready may unbind at any
    moment, and network drivers would create new interfaces on the host. On an
    FPGA card, however, only the VF's driver shows the contents of its port.
    """
    if pci_functions.driver(address) == DFL_DRIVER:
        pci_functions.write(address, "sriov_numvfs", str(count))
        return
    _note(address).create(pci_functions.read(address, _AUTOPROBE))
    try:
        _set_autoprobe(address, "0")
        pci_functions.write(address, "sriov_numvfs", str(count))
    finally:
        _put_back(address)


def _put_back(address: PciAddress) -> None:
    _note(address).put_back(partial(_set_autoprobe, address))


def _note(address: PciAddress) -> StateFile:
    return StateFile(f"{LOCKS}/{address}.autoprobe")


def _set_autoprobe(address: PciAddress, value: str) -> None:
    pci_functions.write(address, _AUTOPROBE, value)
    pci_functions.check(address, _AUTOPROBE, value)


def _set(address: PciAddress, count: int) -> CallResult:
    _put_back(address)
    present = len(pci_functions.vfs(address))
    if present == count:
        return OK
    pci_functions.check_without_vfs(address)
    try:
        _create(address, count)
    except FileNotFoundError as error:
        # sriov_numvfs_store() answers ENOENT for want of a driver that makes VFs.
        return refused(error)._replace(observed=pci_functions.driver(address))
    # The kernel only warns if a driver created another number of VFs.
    present = len(pci_functions.vfs(address))
    if present != count:
        return CallResult(Outcome.NO_EFFECT, 0, "sriov_numvfs", str(present))
    return OK
