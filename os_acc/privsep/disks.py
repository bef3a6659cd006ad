# SPDX-License-Identifier: Apache-2.0

"""Claim the disks of a function before it leaves its driver.

A client inside the kernel leaves no trace in sysfs or procfs: the external journal or
log of a file system, ZFS, bcachefs, DRBD, the backend of an LIO target. It has opened
the disk or a partition exclusively, so that no other exclusive open of the disk
succeeds (bd_prepare_to_claim() in block/bdev.c). An open for reading makes udev look at
nothing when it is closed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from typing import Final

from os_acc.privsep import kernel
from os_acc.privsep.outcome import CallRefused, CallResult, Outcome

#: The step of a refusal; ``observed`` is the name of the disk.
STEP: Final = "disk"
_CLASS: Final = "sys/class/block"
# With native multipath, the disk of the controller is a hidden path to another disk,
# which is below the subsystem (drivers/nvme/host/multipath.c).
_NVME_PATH: Final = re.compile(r"(nvme[0-9]+)c[0-9]+(n[0-9]+)", re.ASCII)

# The disks that this process, a worker's child, has claimed.
_claimed: set[str] = set()


@contextlib.contextmanager
def claimed(directory: str) -> Iterator[None]:
    """Keep the disks below a directory of sysfs open exclusively.

    :raises CallRefused: IN_USE: a disk is in use; UNSURE: it cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        for name, number in sorted(_below(directory).items()):
            if name in _claimed:
                continue
            try:
                node = kernel.current.path("dev", name)
                stack.callback(os.close, kernel.current.claim_disk(node, number))
            except OSError as error:
                raise in_use(name, error) from error
            stack.callback(_claimed.discard, name)
            _claimed.add(name)
        yield


def in_use(name: str, error: OSError) -> CallRefused:
    """Return the refusal for a disk that cannot be opened exclusively."""
    outcome = Outcome.IN_USE if error.errno == errno.EBUSY else Outcome.UNSURE
    return CallRefused(CallResult(outcome, error.errno or errno.EIO, STEP, name))


def _below(directory: str) -> dict[str, str]:
    """Return the device numbers of disks, by name."""
    place = os.path.realpath(directory) + os.sep
    found: dict[str, str] = {}
    # A kernel without block devices has no such class.
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(kernel.current.path(_CLASS)):
            path = kernel.current.path(_CLASS, name)
            # An exclusive open of the whole disk covers its partitions.
            if os.path.realpath(path).startswith(place) and not os.path.exists(
                os.path.join(path, "partition")
            ):
                name = _NVME_PATH.sub(r"\1\2", name)
                # It may leave at this moment.
                with contextlib.suppress(FileNotFoundError):
                    path = kernel.current.path(_CLASS, name, "dev")
                    found[name] = kernel.current.read(path).strip()
    return found
