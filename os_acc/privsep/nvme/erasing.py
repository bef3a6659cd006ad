# SPDX-License-Identifier: Apache-2.0

"""Erase the namespaces of an NVMe function, and verify it.

The rules of :mod:`os_acc.objects.nvme_erasure` hold here, as root reads the device: a
caller chooses among the methods that they allow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from os_acc.objects.nvme import NvmeNamespace, SanitizeAction
from os_acc.objects.nvme_erasure import EraseMethod, NvmeDevice, choose
from os_acc.objects.pci import PciAddress
from os_acc.privsep import claims, pci_functions, record, worker
from os_acc.privsep.kernel import LOCKS, StateFile
from os_acc.privsep.nvme import disks, survey
from os_acc.privsep.nvme.commands import AdminQueue
from os_acc.privsep.nvme.disks import HeldDisk
from os_acc.privsep.outcome import CallRefused
from os_acc.privsep.record import DeviceRecord


@dataclasses.dataclass(slots=True)
class EraseNote:
    """How far the erasure of a function has come, as its file states it.

    :ivar lease: UUID of the lease whose data is erased.
    :ivar sanitizes: a sanitize operation was started.
    :ivar kept: the device numbers of the disks that the keeper has claimed, if it runs.
    :ivar erased: the namespaces that are erased and verified, by NSID.
    :ivar is_done: all is erased and verified.
    :ivar driver: the driver to restore, if it was changed; '' for none.
    :ivar override: the ``driver_override`` to restore with it.
    :ivar is_rebound: the driver was changed.
    :ivar failure: number, text and object of an error that reached no caller.
    """

    function: PciAddress
    lease: str
    sanitizes: bool = False
    kept: str = ""
    erased: tuple[int, ...] = ()
    is_done: bool = False
    driver: str = ""
    override: str = ""
    is_rebound: bool = False
    failure: tuple[int, str, str] | tuple[()] = ()

    def update(self, **values: Any) -> None:
        """Replace values, in the file first."""
        written = dataclasses.asdict(self) | values
        del written["function"]
        _file(self.function).replace(json.dumps(written))
        for name, value in values.items():
            setattr(self, name, value)


def check(function: PciAddress, lease: str, methods: Sequence[EraseMethod]) -> None:
    """Check that the rules allow a method for a function; leave its binding as it was.

    A function on another driver, or on none, is bound to the nvme driver meanwhile. A
    VF without namespaces has nothing to erase, and its rules are not checked.

    :param lease: whose consumer is to get the function.
    :raises OSError: EOPNOTSUPP: they allow none, and the text names the rules; or a VF
        lacks resources. ENODEV, ETIMEDOUT: its controller, or that of its PF, does
        not answer. ESTALE: the drive is not the one that the lease had.
    :raises CallRefused: the host uses a disk of the function.
    """
    # The host's disks of it may have data of an earlier guest.
    is_new = disks.mark(function)
    # That of an erasure that was given up.
    disks.end_keeper(function)
    manager = survey.manager_of(function)
    if manager is not None:
        physical = pci_functions.physical_function(function) or function
        if lack := survey.lacks_of_vfs(physical, manager).get(function):
            raise OSError(errno.EOPNOTSUPP, lack, "controller")
        _check_drive(function, lease)
    if _is_blank_vf(function):
        return
    with _on_driver_for(function, lease):
        queue = survey.wait_for_queue(function)
        device = survey.survey(function, queue)
        # For a consumer on the host no later step unbinds the function and checks them.
        try:
            with pci_functions.claimed_disks(pci_functions.directory(function)):
                _choose(device, methods)
        except CallRefused:
            if is_new:
                disks.unmark(function)
            raise
        if device.controller.sanitizes and queue.sanitize_status().is_running:
            # An erasure that was given up: until its end the drive does no I/O.
            text = "a sanitize operation is running in the drive"
            raise OSError(errno.EBUSY, text, "sanitize status")
        _check_drive(function, lease)


def _check_drive(function: PciAddress, lease: str) -> None:
    """Check that a function on its driver is that of the drive on record for a lease.

    Record its serial number, if the record has none: no driver showed it.

    :raises OSError: ESTALE: the record has another one. The drives may be of one model,
        without a serial number in their configuration space. EBUSY: the drive has the
        data of another lease.
    """
    identity, serial = pci_functions.identity(function), pci_functions.serial(function)
    if identity is None or not serial:
        return
    found = claims.record_of(function, identity, lease)
    own = found if found is not None and found.lease == lease else None
    # When an operator releases a drive without serial number, the data of leases that
    # the node has lost are erased too: its store has none of these leases.
    node = own.node if own is not None and own.first and not own.serial else None
    other = claims.lease_of_serial(identity, serial, unless_of=node)
    if other not in (None, lease):
        text = f"has the data of lease {other}, which is not erased yet"
        raise OSError(errno.EBUSY, text, "serial")
    if own is None or own.serial == serial:
        return
    if own.serial:
        text = (
            f"has serial number {serial!a}, but that with the data of a guest has "
            f"{own.serial!a}, and is not erased: put it in again"
        )
        raise OSError(errno.ESTALE, text, "serial")
    record.write(dataclasses.replace(own, serial=serial))


@contextlib.contextmanager
def _on_driver_for(function: PciAddress, lease: str) -> Iterator[None]:
    """Bind a function to the nvme driver before a consumer gets it.

    A killed worker may leave it there: the helper's record of the lease has the
    binding, with which the release of the lease restores it.

    :raises OSError: EPERM: there is no such record; EBUSY: the function has VFs.
    """
    before = pci_functions.driver(function), pci_functions.override(function)
    if before[0] == survey.DRIVER:
        yield
        return
    recorded(function, lease)
    if pci_functions.vfs(function):
        raise OSError(errno.EBUSY, "the drive has VFs", "sriov_numvfs")
    pci_functions.check_unheld(pci_functions.group(function))
    try:
        pci_functions.rebind(function, survey.DRIVER)
        yield
    finally:
        _restore(function, *before)


def recorded(function: PciAddress, lease: str) -> DeviceRecord:
    """Return the helper's record of a function for a lease.

    :raises OSError: EPERM: there is none.
    """
    identity = pci_functions.identity(function)
    if identity is None:
        raise OSError(errno.ENODEV, "it has left the host", "identity")
    found = claims.sound_record_of(function, identity, lease)
    if found is None or found.lease != lease:
        raise OSError(errno.EPERM, f"lease {lease} has no record of it", "record")
    return found


def refusal(
    function: PciAddress, queue: AdminQueue, methods: Sequence[EraseMethod]
) -> str:
    """Return why a drive on the nvme driver serves no guest; '' if it may.

    It cannot be erased, lacks disks, or has given none of its VFs queues and
    interrupts.
    """
    if pci_functions.vfs(function):
        lacks = survey.lacks_of_vfs(function, queue).values()
        return (
            f"runs none of its VFs: {next(iter(lacks))}" if lacks and all(lacks) else ""
        )
    device = survey.survey(function, queue)
    choice = choose(device, methods)
    return device.lack if choice.method else f"cannot be erased: {choice}"


def erase(function: PciAddress, lease: str, methods: Sequence[EraseMethod]) -> float:
    """Start or continue to erase a function; return the part done.

    A format returns when it is done; a sanitize operation goes on in the drive. After
    an error the next call begins again, except for the namespaces that are erased and
    verified.

    :param methods: the operator's, in the order of preference.
    :raises OSError: EOPNOTSUPP: the rules allow none of them, or the drive is erased
        and lacks disks; EIO: the verification failed; EREMOTEIO: the controller refused
        a command; ESTALE: the drive is not the one that has the data.
    :raises CallRefused: the host uses a disk of the function.
    """
    note = read_note(function, lease)
    if note.is_done:
        if pci_functions.driver(function) == survey.DRIVER:
            with survey.wait_for_queue(function).opened() as queue:
                _check_disks(function, queue)
        return 1.0
    if note.failure:
        failure = note.failure
        note.update(failure=())
        raise OSError(*failure)
    try:
        return _erase(note, methods)
    except OSError as error:
        if worker.is_late():
            # The caller of a format that took hours is gone: the next call raises it.
            number, name = error.errno or errno.EIO, str(error.filename or "")
            note.update(failure=(number, str(error.strerror or error), name))
        raise


def _erase(note: EraseNote, methods: Sequence[EraseMethod]) -> float:
    function = note.function
    # 1. Keep udev away, also from a function that was never marked.
    disks.mark(function)
    if pci_functions.vfs(function):
        raise OSError(errno.EBUSY, "the drive has VFs", "sriov_numvfs")
    if survey.manager_of(function) is not None:
        _check_drive(function, note.lease)
    done = 1.0
    if not _is_blank_vf(function):
        # 2. Bind the driver, if the function has another one; undone at the end.
        #    The commands reach the surveyed controller, or none.
        with _on_driver(note), survey.wait_for_queue(function).opened() as queue:
            done = _erase_bound(note, queue, methods)
            if done == 1.0:
                _check_disks(function, queue)
    if done == 1.0:
        # 3. Record the end before the disks are shown.
        note.update(is_done=True)
        disks.unmark(function)
    return done


def _check_disks(function: PciAddress, queue: AdminQueue) -> None:
    """Check that an erased drive has disks for its next guest."""
    is_drive = survey.manager_of(function) is None
    if is_drive and (lack := survey.survey(function, queue).lack):
        raise OSError(errno.EOPNOTSUPP, f"is erased, but {lack}", "namespaces")


def _is_blank_vf(function: PciAddress) -> bool:
    manager = survey.manager_of(function)
    return manager is not None and survey.attached_to_vf(function, manager) == ()


@contextlib.contextmanager
def _on_driver(note: EraseNote) -> Iterator[None]:
    function = note.function
    if pci_functions.driver(function) != survey.DRIVER:
        pci_functions.check_unheld(pci_functions.group(function))
        # A killed worker may have left the function between two drivers: its note
        # alone has the binding to restore.
        if not note.is_rebound:
            driver, override = (
                pci_functions.driver(function),
                pci_functions.override(function),
            )
            note.update(driver=driver, override=override, is_rebound=True)
        pci_functions.rebind(function, survey.DRIVER)
    try:
        yield
    finally:
        if note.is_rebound:
            _restore(function, note.driver, note.override)


def _restore(function: PciAddress, driver: str, override: str) -> None:
    if driver:
        pci_functions.rebind(function, driver)
    else:
        pci_functions.unbind(function)
    pci_functions.set_override(function, override)
    found = pci_functions.driver(function)
    if found != driver:
        raise OSError(errno.EIO, f"is bound to {found or 'no driver'}", "driver")


def _erase_bound(
    note: EraseNote, queue: AdminQueue, methods: Sequence[EraseMethod]
) -> float:
    _check_drive(note.function, note.lease)
    device = survey.survey(note.function, queue)
    if device.is_blank:
        return 1.0
    method = _choose(device, methods)
    if (action := method.sanitize_action) is not None:
        return _sanitize(note, queue, device, action)
    _erase_namespaces(note, queue, device, method)
    return 1.0


def _choose(device: NvmeDevice, methods: Sequence[EraseMethod]) -> EraseMethod:
    choice = choose(device, methods)
    if choice.method is None:
        text = f"it cannot be erased: {choice}"
        raise OSError(errno.EOPNOTSUPP, text, "erase_methods")
    return choice.method


def _erase_namespaces(
    note: EraseNote, queue: AdminQueue, device: NvmeDevice, method: EraseMethod
) -> None:
    with disks.held(note.function, queue, device) as fds:
        claimed = zip(fds.values(), device.namespaces, strict=True)
        for disk in [HeldDisk.of(*each) for each in claimed]:
            number = disk.namespace.number
            if number in note.erased:
                continue
            # 1. Erase it.
            if method is EraseMethod.DEALLOCATE:
                disk.deallocate()
            else:
                queue.format(disk.namespace, method.secure_erase)
                _check_format(disk.namespace, queue.namespace(number))
            # 2. Verify it, with the samples of before: another call has none.
            disk.verify(method)
            disks.forget_partitions(disk.fd)
            # 3. Record that, so that no call repeats it.
            note.update(erased=(*note.erased, number))
        _show(note)


def _show(note: EraseNote) -> None:
    """Show the erased disks to udev, which looks at each one when its claim ends.

    udev watches for the end of a write (OPTIONS="watch" in udev(7)).
    """
    if not note.is_rebound:
        # The host may use the disks from then on: no later call may erase them.
        note.update(is_done=True)
        disks.unmark(note.function)


def _check_format(before: NvmeNamespace, after: NvmeNamespace) -> None:
    if after.formatted is not None:
        raise OSError(errno.EIO, "a format still runs", f"namespace {after.number}")
    if (after.blocks, after.format) != (before.blocks, before.format):
        text = f"has {after.blocks} blocks and format {after.format:#x} after a format"
        raise OSError(errno.EIO, text, f"namespace {after.number}")


def _sanitize(
    note: EraseNote, queue: AdminQueue, device: NvmeDevice, action: SanitizeAction
) -> float:
    function = note.function
    status = queue.sanitize_status()
    if status.is_running:
        # After a reboot, or if the keeper was killed, the disks are free. While it has
        # them open, no other disks have their numbers.
        numbers = tuple(each.number for each in device.namespaces)
        found = disks.wait_for_disks(function, numbers).values()
        kept = " ".join(each.device for each in found)
        if note.kept != kept or not disks.has_keeper(function):
            with disks.held(function, queue, device) as fds:
                _keep(note, fds)
        return min(status.progress, 0.999)
    if status.is_completed and status.is_erased:
        with disks.held(function, queue, device) as fds:
            # The host may have written between the end of the operation and the claims.
            status = queue.sanitize_status()
            if status.is_completed and status.is_erased:
                for fd in fds.values():
                    disks.forget_partitions(fd)
                _show(note)
                return 1.0
    if note.sanitizes:
        disks.end_keeper(function)
        note.update(sanitizes=False)
        state = "an unknown state" if status.state is None else status.state.name
        text = f"the sanitize operation ended as {state}, and the drive has data"
        raise OSError(errno.EIO, text, "sanitize status")
    with disks.held(function, queue, device) as fds:
        queue.sanitize(action)
        note.update(sanitizes=True)
        _keep(note, fds)
    return 0.0


def _keep(note: EraseNote, fds: Mapping[str, int]) -> None:
    """Keep disks claimed behind this call, if the function stays on its driver."""
    if fds and not note.is_rebound:
        note.update(kept=" ".join(fds))
        # Without memory for a process, the next call claims the disks again.
        with contextlib.suppress(OSError):
            disks.start_keeper(note.function, note.lease, fds.values())


def read_note(function: PciAddress, lease: str) -> EraseNote:
    """Return the note of a lease; a new one if there is none."""
    # With a damaged note the erasure begins again.
    with contextlib.suppress(FileNotFoundError, ValueError, TypeError, KeyError):
        with open(_file(function).path, encoding="utf-8") as file:
            found = json.load(file)
        lists = {name: tuple(found[name]) for name in ("erased", "failure")}
        note = EraseNote(function, **{**found, **lists})
        if note.lease == lease:
            return note
    return EraseNote(function, lease)


def _file(function: PciAddress) -> StateFile:
    return StateFile(f"{LOCKS}/nvme/{function}")
