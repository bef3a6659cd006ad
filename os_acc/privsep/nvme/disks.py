# SPDX-License-Identifier: Apache-2.0

"""The disks of an NVMe function: claimed, kept claimed, sampled, and shown to udev.

While a function has a mark, ``50-os-acc.rules`` keeps udev, LVM and RAID away from its
disks.

A sanitize operation may take hours, and each call of the helper ends soon. Between the
calls a process of its own, the keeper, has the claimed disks open. It ends as soon as a
later call writes to its FIFO, or the helper's record of the function is not that of the
lease any more. It has no lock of the device, and nothing depends on it: once it has
been killed, the next call claims the disks again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import mmap
import os
import select
import struct
import time
from collections.abc import Collection, Iterator
from functools import partial
from typing import Final

from os_acc.objects.nvme import NvmeNamespace, ReadValue
from os_acc.objects.nvme_erasure import EraseMethod, NvmeDevice
from os_acc.objects.pci import PciAddress
from os_acc.privsep import claims, kernel, pci_functions, worker
from os_acc.privsep.kernel import LOCKS, StateFile
from os_acc.privsep.nvme import survey
from os_acc.privsep.nvme.commands import AdminQueue
from os_acc.privsep.outcome import CallRefused, Outcome
from os_acc.privsep.record import MARKS

_FIFOS: Final = f"{LOCKS}/claims"
# The longest time for which the keeper misses the end of the record.
_CHECK_MS: Final = 1000
_END_SECONDS, _POLL_SECONDS = 10.0, 0.02
# include/uapi/linux/fs.h: _IO(0x12, 95), _IO(0x12, 97) and _IO(0x12, 119).
_RESCAN_PARTITIONS, _FLUSH_BUFFERS, _DISCARD = 0x125F, 0x1261, 0x1277
_RANGE = struct.Struct("=QQ")
# Samples of a disk, evenly spread, and the size of each in bytes.
_SAMPLES, _SAMPLE = 64, 4096


@dataclasses.dataclass(frozen=True, slots=True)
class NvmeDisk:
    """The block device of a namespace, with its number as in sysfs, ``major:minor``."""

    node: str
    device: str


def wait_for_disks(
    function: PciAddress, namespaces: tuple[int, ...]
) -> dict[int, NvmeDisk]:
    """Return the disks of these namespaces, by NSID, once the driver has found all.

    :raises OSError: ENODEV, ETIMEDOUT: a disk did not appear.
    """

    def found() -> dict[int, NvmeDisk] | None:
        there = _disks(function)
        if not all(number in there for number in namespaces):
            return None
        return {number: there[number] for number in namespaces}

    return survey.wait_for("disks", function, found)


def _disks(function: PciAddress) -> dict[int, NvmeDisk]:
    directory = survey.controller_directory(function)
    found: dict[int, NvmeDisk] = {}
    for name, device in (
        pci_functions.disks_below(directory).items() if directory else ()
    ):
        number = survey.read(kernel.current.path("sys/class/block", name), "nsid")
        if number.isdigit():
            found[int(number)] = NvmeDisk(kernel.current.path("dev", name), device)
    return found


@contextlib.contextmanager
def held(
    function: PciAddress, queue: AdminQueue, device: NvmeDevice
) -> Iterator[dict[str, int]]:
    """Claim all disks of a function, so that the host can use none of them.

    Yield their descriptors by device number, in the order of the namespaces. The
    keeper, which has them between two calls, ends.

    :param queue: of the function. While it and the disks are open, the kernel gives
        their numbers to no other one.
    :raises CallRefused: the host uses one already.
    :raises OSError: ENODEV: the controller was replaced since the survey; EIO: the
        kernel has found namespaces that were not listed.
    """
    numbers = tuple(each.number for each in device.namespaces)
    found = wait_for_disks(function, numbers)
    end_keeper(function)
    with contextlib.ExitStack() as opened:
        fds: dict[str, int] = {}
        for disk in found.values():
            try:
                fd = kernel.current.open_disk(disk.node, disk.device)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                raise pci_functions.disk_in_use(
                    os.path.basename(disk.node), error
                ) from error
            opened.callback(os.close, fd)
            fds[disk.device] = fd
            # What the host has written goes before the erasure, not after it.
            kernel.current.ioctl(fd, _FLUSH_BUFFERS, b"")
        now = _disks(function)
        if unlisted := now.keys() - found.keys():
            text = f"has a disk of namespace {min(unlisted)}, which it does not list"
            raise OSError(errno.EIO, text, "namespaces")
        if survey.wait_for_queue(function) != queue or now != found:
            raise OSError(errno.ENODEV, "the controller was replaced", "nvme")
        yield fds


def mark(function: PciAddress) -> bool:
    """Keep udev away from the disks of a function; return whether it was not yet."""
    is_new = _mark(function).read() is None
    _mark(function).replace(_instance(function))
    return is_new


def unmark(function: PciAddress) -> None:
    """Let udev see the disks of a function again."""
    _mark(function).remove()


def unmark_unused(function: PciAddress) -> None:
    """Remove the mark of a function that has not left its driver since the mark."""
    if _mark(function).read() == _instance(function):
        unmark(function)


def _instance(function: PciAddress) -> str:
    """Return an identifier of the devices that a driver has made of a function.

    A driver that binds again makes a directory with another inode. Without a driver
    there is no disk, and an erasure marks the function again.
    """
    found = pci_functions.controller(function)
    with contextlib.suppress(FileNotFoundError):
        return str(os.stat(found).st_ino) if found else ""
    return ""


def _mark(function: PciAddress) -> StateFile:
    return StateFile(f"{MARKS}/{function}")


@dataclasses.dataclass(frozen=True, slots=True)
class HeldDisk:
    """A claimed disk.

    :ivar fd: its descriptor, opened with O_EXCL.
    :ivar before: samples of what it held; None where it could not be read.
    """

    fd: int
    namespace: NvmeNamespace
    before: tuple[bytes | None, ...]

    @classmethod
    def of(cls, fd: int, namespace: NvmeNamespace) -> HeldDisk:
        """Sample a disk before it is erased."""
        return cls(fd, namespace, _samples(fd, namespace))

    def deallocate(self) -> None:
        """Deallocate all blocks (BLKDISCARD, drivers/nvme/host/core.c)."""
        size = self.namespace.blocks * self.namespace.block_size
        kernel.current.ioctl(self.fd, _DISCARD, _RANGE.pack(0, size))

    def verify(self, method: EraseMethod) -> None:
        """Check that each sample has changed, and shows the value of erased blocks.

        A cryptographic erase leaves any contents, and a block may become unreadable.

        :raises OSError: EIO: a sample shows data.
        """
        expected = _expected(self.namespace.read_value, method)
        for before, after in zip(
            self.before, _samples(self.fd, self.namespace), strict=True
        ):
            if after is None and method is EraseMethod.FORMAT_CRYPTO:
                continue
            same = before == after and before is not None and not _is_constant(before)
            if after is None or same or not _fits(after, expected):
                what = "cannot be read" if after is None else "still shows data"
                text = f"{what} after {method}"
                raise OSError(errno.EIO, text, f"namespace {self.namespace.number}")


def forget_partitions(fd: int) -> None:
    """Drop cached data of a claimed disk, and read its partition table, now gone."""
    kernel.current.ioctl(fd, _FLUSH_BUFFERS, b"")
    try:
        kernel.current.ioctl(fd, _RESCAN_PARTITIONS, b"")
    except OSError as error:
        # A disk without partitions (GENHD_FL_NO_PART), or a process that still has
        # one of them open: it reads what is erased.
        if error.errno not in (errno.EINVAL, errno.EBUSY):
            raise


def _expected(value: ReadValue, method: EraseMethod) -> frozenset[int]:
    """Return the bytes that an erased block may consist of; empty: any.

    Format NVM with a secure erase may fill the blocks with zeroes or ones (Base
    Specification 2.0, section 5.14, SES).
    """
    if method is EraseMethod.FORMAT_CRYPTO or value is ReadValue.UNKNOWN:
        return frozenset()
    if method is EraseMethod.DEALLOCATE:
        return frozenset({0 if value is ReadValue.ZEROES else 0xFF})
    return frozenset({0, 0xFF})


def _fits(data: bytes, expected: frozenset[int]) -> bool:
    return not expected or (_is_constant(data) and data[0] in expected)


def _is_constant(data: bytes) -> bool:
    return data.count(data[:1]) == len(data)


def _samples(fd: int, namespace: NvmeNamespace) -> tuple[bytes | None, ...]:
    sample = max(_SAMPLE, namespace.block_size)
    size = namespace.blocks * namespace.block_size
    last = max(0, size - sample) // sample
    places = sorted({last * at // (_SAMPLES - 1) for at in range(_SAMPLES)})
    # The descriptor bypasses the page cache, which may have old data: the buffer has
    # to be aligned (open(2), O_DIRECT).
    with mmap.mmap(-1, sample) as buffer:
        return tuple(_read(fd, at * sample, buffer) for at in places)


def _read(fd: int, offset: int, buffer: mmap.mmap) -> bytes | None:
    try:
        count = os.preadv(fd, [buffer], offset)
    except OSError:
        return None
    return buffer[:count] or None


def start_keeper(function: PciAddress, lease: str, fds: Collection[int]) -> None:
    """Start the keeper of a function, which has none.

    :param fds: descriptors of the claimed disks; the caller closes its own.
    """
    path = _fifo(function)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    # For reading and writing: a read waits although no writer is left.
    fifo = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        wait = partial(_wait, function, lease, fds, fifo)
        worker.leave_behind((*fds, fifo), wait)
    finally:
        os.close(fifo)


def has_keeper(function: PciAddress) -> bool:
    """Return whether a function has a keeper."""
    fifo = _open_fifo(function)
    if fifo is None:
        return False
    os.close(fifo)
    return True


def end_keeper(function: PciAddress) -> None:
    """End the keeper of a function, if any; CallRefused: it does not end."""
    deadline = time.monotonic() + _END_SECONDS
    while (fifo := _open_fifo(function)) is not None:
        try:
            # It may end by itself meanwhile.
            with contextlib.suppress(BrokenPipeError):
                os.write(fifo, b"\n")
        finally:
            os.close(fifo)
        if time.monotonic() > deadline:
            raise CallRefused(Outcome.IN_USE, errno.EBUSY, "keeper")
        time.sleep(_POLL_SECONDS)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_fifo(function))


def _open_fifo(function: PciAddress) -> int | None:
    """Open the FIFO of a keeper; None: nothing reads it (fifo(7))."""
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(_fifo(function), flags)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENXIO):
            return None
        raise


def _wait(function: PciAddress, lease: str, fds: Collection[int], fifo: int) -> None:
    poll = select.poll()
    poll.register(fifo, select.POLLIN)
    while not poll.poll(_CHECK_MS) and _is_recorded(function, lease):
        pass
    # Before the FIFO: while that is open, the keeper counts as running.
    for fd in fds:
        os.close(fd)


def _is_recorded(function: PciAddress, lease: str) -> bool:
    identity = pci_functions.identity(function)
    return identity is not None and claims.lease_of(function, identity) == lease


def _fifo(function: PciAddress) -> str:
    return kernel.current.path(_FIFOS, str(function))
