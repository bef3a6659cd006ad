# SPDX-License-Identifier: Apache-2.0

"""Files below ``/run/os_acc`` that outlive a worker: marks for udev, and progress.

While a function has a mark, ``50-os-acc.rules`` keeps udev, LVM and RAID away from its
disks. The note of an erasure lets another worker continue it. A reboot removes both:
the erasure then begins again.
"""

from __future__ import annotations

import dataclasses
import json
import os

from os_acc.objects.pci import PciAddress
from os_acc.privsep import functions
from os_acc.privsep.kernel import LOCKS, StateFile

#: The directory of the marks, which the udev rules name.
MARKS = f"{LOCKS}/erasing"


@dataclasses.dataclass(frozen=True, slots=True)
class EraseNote:
    """How far the erasure of a function has come.

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

    lease: str
    sanitizes: bool = False
    kept: str = ""
    erased: tuple[int, ...] = ()
    is_done: bool = False
    driver: str = ""
    override: str = ""
    is_rebound: bool = False
    failure: tuple[int, str, str] | tuple[()] = ()


def mark(function: PciAddress) -> None:
    """Keep udev away from the disks of a function."""
    _mark(function).replace(_instance(function))


def unmark(function: PciAddress) -> None:
    """Let udev see the disks of a function again."""
    _mark(function).remove()


def unmark_unused(function: PciAddress) -> None:
    """Remove the mark of a function that has been with its driver ever since."""
    if _mark(function).read() == _instance(function):
        unmark(function)


def read(function: PciAddress, lease: str) -> EraseNote:
    """Return the note of a lease; a new one if there is none."""
    note = _read(function)
    return note if note is not None and note.lease == lease else EraseNote(lease)


def _read(function: PciAddress) -> EraseNote | None:
    try:
        with open(_note(function).path, encoding="utf-8") as file:
            found = json.load(file)
        lists = {name: tuple(found[name]) for name in ("erased", "failure")}
        return EraseNote(**{**found, **lists})
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        # A damaged note: the erasure begins again.
        return None


def write(function: PciAddress, note: EraseNote) -> None:
    """Replace the note of a function."""
    _note(function).replace(json.dumps(dataclasses.asdict(note)))


def _instance(function: PciAddress) -> str:
    """Return what identifies the devices that a driver has made of a function.

    A driver that binds again makes a directory with another inode. Without a driver
    there is no disk, and an erasure marks the function again.
    """
    path = os.path.join(functions.directory(function), "nvme")
    try:
        (name,) = os.listdir(path)
        return str(os.stat(os.path.join(path, name)).st_ino)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return ""


def _mark(function: PciAddress) -> StateFile:
    return StateFile(f"{MARKS}/{function}")


def _note(function: PciAddress) -> StateFile:
    return StateFile(f"{LOCKS}/nvme/{function}")
