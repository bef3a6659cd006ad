# SPDX-License-Identifier: Apache-2.0

"""Keep the disks of a function claimed while a sanitize operation runs in its drive.

The operation may take hours, and each call of the helper ends soon. Between the calls
a process of its own, the keeper, has the claimed disks open. It ends as soon as a later
call writes to its FIFO, or the helper's record of the function is not that of the lease
any more. It has no lock of the device, and nothing depends on it: once it has been
killed, the next call claims the disks again.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import select
import time
from collections.abc import Sequence
from typing import Final

from os_acc.objects.pci import PciAddress
from os_acc.privsep import claims, functions, kernel, worker
from os_acc.privsep.kernel import LOCKS
from os_acc.privsep.outcome import CallRefused, Outcome

_FIFOS: Final = f"{LOCKS}/claims"
# The longest time for which the keeper misses the end of the record.
_CHECK_MS: Final = 1000
_END_SECONDS, _POLL_SECONDS = 10.0, 0.02


def keep(function: PciAddress, lease: str, disks: Sequence[int]) -> None:
    """Start the keeper of a function, which has none.

    :param disks: descriptors of the claimed disks; the caller closes its own.
    :raises OSError: the keeper could not be started.
    """
    path = _path(function)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    # For reading and writing: a read waits although no writer is left.
    fifo = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        wait = functools.partial(_wait, function, lease, disks, fifo)
        worker.leave_behind((*disks, fifo), wait)
    finally:
        os.close(fifo)


def is_running(function: PciAddress) -> bool:
    """Return whether a function has a keeper."""
    fifo = _open(function)
    if fifo is None:
        return False
    os.close(fifo)
    return True


def end(function: PciAddress) -> None:
    """End the keeper of a function, if there is one; its disks are free then.

    :raises CallRefused: it does not end.
    """
    deadline = time.monotonic() + _END_SECONDS
    while (fifo := _open(function)) is not None:
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
        os.unlink(_path(function))


def _open(function: PciAddress) -> int | None:
    """Open the FIFO of a keeper; None: nothing reads it (fifo(7))."""
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(_path(function), flags)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENXIO):
            return None
        raise


def _wait(function: PciAddress, lease: str, disks: Sequence[int], fifo: int) -> None:
    """Wait, in the keeper, until the disks are to be free."""
    poll = select.poll()
    poll.register(fifo, select.POLLIN)
    while not poll.poll(_CHECK_MS) and _is_recorded(function, lease):
        pass
    # Before the FIFO: while that is open, the keeper counts as running.
    for disk in disks:
        os.close(disk)


def _is_recorded(function: PciAddress, lease: str) -> bool:
    identity = functions.identity(function)
    return identity is not None and claims.lease_of(function, identity) == lease


def _path(function: PciAddress) -> str:
    return kernel.current.path(_FIFOS, str(function))
