# SPDX-License-Identifier: Apache-2.0

"""Erase the namespaces of an NVMe function, and verify it.

The rules of :mod:`os_acc.objects.nvme_erasure` hold here, as root reads the device: a
caller chooses among the methods that they allow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
from collections.abc import Iterator, Sequence

from os_acc.objects.nvme import NvmeHealth, NvmeNamespace, SanitizeAction
from os_acc.objects.nvme_erasure import EraseMethod, NvmeDevice, choose
from os_acc.objects.pci import PciAddress
from os_acc.privsep import functions, kernel
from os_acc.privsep.nvme import notes, survey
from os_acc.privsep.nvme.commands import AdminQueue
from os_acc.privsep.nvme.media import HeldDisk
from os_acc.privsep.nvme.notes import EraseNote
from os_acc.privsep.outcome import CallRefused, CallResult, Outcome


def check(function: PciAddress, methods: Sequence[EraseMethod]) -> None:
    """Check that the rules allow a method for a function that is on its driver.

    A VF without a driver is checked once it has been used.

    :raises OSError: EPERM: they allow none; the text names the rules.
    """
    if survey.live_queue(function) is None:
        return
    queue = survey.wait_for_queue(function)
    _choose(survey.survey(function, queue), methods)


def health(function: PciAddress) -> NvmeHealth | None:
    """Return the health of a function's controller; None: it is not on the host."""
    queue = survey.live_queue(function)
    return None if queue is None else queue.health()


def erase(function: PciAddress, lease: str, methods: Sequence[EraseMethod]) -> float:
    """Start or continue to erase a function; return the part done.

    A format returns when it is done; a sanitize operation goes on in the drive.

    :param methods: the operator's, in the order of preference.
    :raises OSError: EPERM: the rules allow none of them; EIO: the verification
        failed; EREMOTEIO: the controller refused a command.
    :raises CallRefused: the host uses a disk of the function.
    """
    note = notes.read(function, lease)
    if note.is_done:
        return 1.0
    # 1. Keep udev away, also from a function that was never marked.
    notes.mark(function)
    if functions.count_vfs(function):
        raise OSError(errno.EBUSY, "the drive has VFs", "sriov_numvfs")
    done = 1.0
    if not _is_blank_vf(function):
        # 2. Bind the driver, if the function has another one; undone at the end.
        with _on_driver(function, note):
            done = _erase_bound(function, notes.read(function, lease), methods)
    if done == 1.0:
        # 3. Record the end before the disks are shown.
        notes.write(function, dataclasses.replace(note, is_done=True))
        notes.unmark(function)
    return done


def _is_blank_vf(function: PciAddress) -> bool:
    """Return whether a function is a VF without namespaces of its own."""
    manager = survey.manager_of(function)
    return manager is not None and survey.attached_to_vf(function, manager) == ()


@contextlib.contextmanager
def _on_driver(function: PciAddress, note: EraseNote) -> Iterator[None]:
    """Bind a function to the nvme driver, and restore its binding."""
    if functions.driver(function) != survey.DRIVER:
        # A killed worker may have left the function between two drivers: its note
        # alone has the binding to restore.
        if not note.is_rebound:
            note = dataclasses.replace(
                note,
                driver=functions.driver(function),
                override=functions.override(function),
                is_rebound=True,
            )
            notes.write(function, note)
        functions.rebind(function, survey.DRIVER)
    try:
        yield
    finally:
        if note.is_rebound:
            _restore(function, note)


def _restore(function: PciAddress, note: EraseNote) -> None:
    if note.driver:
        functions.rebind(function, note.driver)
    else:
        functions.unbind(function)
    functions.set_override(function, note.override)
    found = functions.driver(function)
    if found != note.driver:
        raise OSError(errno.EIO, f"is bound to {found or 'no driver'}", "driver")


def _erase_bound(
    function: PciAddress, note: EraseNote, methods: Sequence[EraseMethod]
) -> float:
    queue = survey.wait_for_queue(function)
    device = survey.survey(function, queue)
    if device.is_blank:
        return 1.0
    method = _choose(device, methods)
    action = method.sanitize_action
    if action is not None:
        return _sanitize(function, queue, device, note, action)
    with _held(function, device) as disks:
        if method is EraseMethod.DEALLOCATE:
            for disk in disks:
                disk.deallocate()
        else:
            _format(function, queue, disks, note, method, device)
        for disk in disks:
            disk.verify(method)
            disk.forget_partitions()
    return 1.0


def _choose(device: NvmeDevice, methods: Sequence[EraseMethod]) -> EraseMethod:
    choice = choose(device, methods)
    if choice.method is None:
        if device.is_blank:
            return EraseMethod.FORMAT
        raise OSError(errno.EPERM, f"it cannot be erased: {choice}", "erase_methods")
    return choice.method


@contextlib.contextmanager
def _held(function: PciAddress, device: NvmeDevice) -> Iterator[list[HeldDisk]]:
    """Claim all disks of a function, so that the host can use none of them.

    :raises CallRefused: the host uses one already.
    """
    numbers = tuple(each.number for each in device.namespaces)
    found = survey.wait_for_disks(function, numbers)
    with contextlib.ExitStack() as claims:
        held: list[HeldDisk] = []
        for namespace in device.namespaces:
            disk = found[namespace.number]
            try:
                fd = kernel.current.open_disk(disk.node, disk.device)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                name = os.path.basename(disk.node)
                refusal = CallResult(Outcome.IN_USE, errno.EBUSY, name)
                raise CallRefused(refusal) from error
            claims.callback(os.close, fd)
            held.append(HeldDisk.of(fd, namespace))
        yield held


def _format(
    function: PciAddress,
    queue: AdminQueue,
    disks: Sequence[HeldDisk],
    note: EraseNote,
    method: EraseMethod,
    device: NvmeDevice,
) -> None:
    for disk in disks:
        number = disk.namespace.number
        if number in note.formatted:
            continue
        queue.format(disk.namespace, method.secure_erase)
        _check_format(disk.namespace, queue.namespace(number))
        note = dataclasses.replace(note, formatted=(*note.formatted, number))
        notes.write(function, note)


def _check_format(before: NvmeNamespace, after: NvmeNamespace) -> None:
    if after.formatted is not None:
        raise OSError(errno.EIO, "a format still runs", f"namespace {after.number}")
    if (after.blocks, after.format) != (before.blocks, before.format):
        text = f"has {after.blocks} blocks and format {after.format:#x} after a format"
        raise OSError(errno.EIO, text, f"namespace {after.number}")


def _sanitize(
    function: PciAddress,
    queue: AdminQueue,
    device: NvmeDevice,
    note: EraseNote,
    action: SanitizeAction,
) -> float:
    status = queue.sanitize_status()
    if status.is_running:
        return min(status.progress, 0.999)
    if status.is_completed and status.is_erased:
        with _held(function, device) as disks:
            for disk in disks:
                disk.forget_partitions()
        return 1.0
    if note.sanitizes:
        text = f"the sanitize operation ended with state {status.state}, and data"
        raise OSError(errno.EIO, text, "sanitize status")
    with _held(function, device):
        queue.sanitize(action)
        notes.write(function, dataclasses.replace(note, sanitizes=True))
    return 0.0
