# SPDX-License-Identifier: Apache-2.0

"""Claim the disks of a function before it leaves its driver.

A client inside the kernel, as the journal of a file system or ZFS, leaves no trace in
sysfs or procfs. It has opened the disk or a partition exclusively, so that no other
exclusive open of the disk succeeds (bd_prepare_to_claim() in block/bdev.c). An open for
reading makes udev look at nothing when it is closed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from typing import Final

from os_acc.privsep import kernel
from os_acc.privsep.outcome import CallRefused, Outcome

#: The step of a refusal; ``observed`` is the name of the disk.
STEP: Final = "disk"
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
        for name, number in sorted(below(directory).items()):
            if name in _claimed:
                continue
            try:
                node = kernel.current.path("dev", name)
                # O_NONBLOCK: also a drive without a medium.
                flags = os.O_RDONLY | os.O_NONBLOCK
                stack.callback(os.close, kernel.current.open_disk(node, number, flags))
            except OSError as error:
                raise in_use(name, error) from error
            stack.callback(_claimed.discard, name)
            _claimed.add(name)
        yield


def in_use(name: str, error: OSError) -> CallRefused:
    """Return the refusal for a disk that cannot be opened exclusively."""
    outcome = Outcome.IN_USE if error.errno == errno.EBUSY else Outcome.UNSURE
    return CallRefused(outcome, error.errno or errno.EIO, STEP, name)


def below(directory: str) -> dict[str, str]:
    """Return the device numbers of the disks below a directory of sysfs, by name."""
    found: dict[str, str] = {}
    for path, _, files in os.walk(os.path.realpath(directory)):
        # An exclusive open of the disk covers its partitions.
        if "partition" not in files:
            name = _NVME_PATH.sub(r"\1\2", os.path.basename(path))
            # It is no disk, or leaves at this moment.
            with contextlib.suppress(FileNotFoundError):
                number = kernel.current.path("sys/class/block", name, "dev")
                found[name] = kernel.current.read(number).strip()
    return found
