# SPDX-License-Identifier: Apache-2.0

"""Small reads below ``/sys`` and ``/proc`` that distinguish missing from unreadable.

A missing attribute is a valid result (None). Any other error of the kernel is
raised: treating it as absence would be a guess.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import os
import re
from typing import Final

from os_acc.exception import HostStepFailed
from os_acc.objects.instance import canonical_uuid
from os_acc.objects.pci import PciAddress, function_named

#: The directory of all PCI functions, below the root.
DEVICES: Final = "sys/bus/pci/devices"
# The kernel answers ENODEV to a read of an open attribute of a removed device.
_MISSING = frozenset({errno.ENOENT, errno.ENODEV, errno.ENOTDIR})
_FLAGS = os.O_RDONLY | os.O_CLOEXEC
_ATTRIBUTE_FLAGS = _FLAGS | os.O_NOFOLLOW
# sysfs returns a whole attribute in one read, at most one page
# (Documentation/filesystems/sysfs.rst).
_PAGE = 4096
_NUMBER = re.compile(r"-?[0-9]{1,19}|0x[0-9a-f]{1,16}", re.ASCII | re.IGNORECASE)
_RANGE = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", re.ASCII)


def function_path(root: str, address: PciAddress, *parts: str) -> str:
    """Return the directory of a PCI function, or the path of a part of it."""
    return os.path.join(root, DEVICES, str(address), *parts)


def read_text(path: str, *, dir_fd: int | None = None) -> str | None:
    """Return the stripped text of one sysfs attribute; None if it is missing.

    :raises HostStepFailed: it exists and cannot be read.
    """
    try:
        fd = os.open(path, _ATTRIBUTE_FLAGS, dir_fd=dir_fd)
        try:
            data = os.read(fd, _PAGE)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno in _MISSING:
            return None
        raise unreadable(path, error) from error
    return data.decode("utf-8", "replace").strip()


def read_lines(path: str) -> list[str]:
    """Return all lines of a ``/proc`` file of any length; none if it is missing.

    :raises HostStepFailed: it exists and cannot be read.
    """
    data = bytearray()
    try:
        fd = os.open(path, _FLAGS)
        try:
            while chunk := os.read(fd, 16 * _PAGE):
                data += chunk
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno not in _MISSING:
            raise unreadable(path, error) from error
    # str.splitlines() would also split at characters that a path may contain.
    return [line for line in data.decode("utf-8", "replace").split("\n") if line]


def link_target(path: str) -> str | None:
    """Return the target of a symbolic link; None if it is missing.

    :raises HostStepFailed: it exists and cannot be read, or is not a link.
    """
    try:
        return os.readlink(path)
    except OSError as error:
        if error.errno in _MISSING:
            return None
        raise unreadable(path, error) from error


def link_name(path: str, *, dir_fd: int | None = None) -> str | None:
    """Return the last component of a link's target; None if it is missing.

    :raises HostStepFailed: it exists and cannot be read, or is not a link.
    """
    try:
        return os.readlink(path, dir_fd=dir_fd).rpartition("/")[2]
    except OSError as error:
        if error.errno in _MISSING:
            return None
        raise unreadable(path, error) from error


def link_address(path: str, *, dir_fd: int | None = None) -> PciAddress | None:
    """Return the PCI function that a link points to; None if it is missing.

    :raises HostStepFailed: it cannot be read or points to something else.
    """
    name = link_name(path, dir_fd=dir_fd)
    if name is None:
        return None
    if (address := function_named(name)) is None:
        raise HostStepFailed(f"{path} links to {name!r}, which is not a PCI function")
    return address


def pf_of(root: str, address: PciAddress) -> PciAddress:
    """Return the PF of a VF, else the function itself."""
    with contextlib.suppress(HostStepFailed):
        return link_address(function_path(root, address, "physfn")) or address
    return address


def mode(path: str, *, dir_fd: int | None = None) -> int:
    """Return the mode of an attribute; 0: it does not exist.

    :raises HostStepFailed: the kernel reports another error.
    """
    try:
        return os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_mode
    except OSError as error:
        if error.errno in _MISSING:
            return 0
        raise unreadable(path, error) from error


def names(directory: str | int) -> list[str]:
    """Return the sorted names in a directory (path or descriptor); none if missing.

    :raises HostStepFailed: it exists and cannot be listed.
    """
    try:
        return sorted(os.listdir(directory))
    except OSError as error:
        if error.errno in _MISSING:
            return []
        raise unreadable(str(directory), error) from error


# Nodes, groups and revisions of thousands of functions repeat in each scan.
@functools.lru_cache(16384)
def number(text: str, what: str) -> int:
    """Parse a decimal number, or a hexadecimal one with prefix 0x.

    :raises HostStepFailed: the text is neither; ``what`` names its source.
    """
    if _NUMBER.fullmatch(text) is None:
        raise HostStepFailed(f"{what} contains {text[:80]!r}, expected a number")
    return int(text, 16 if text[:2].lower() == "0x" else 10)


# The kernel lists the siblings of a core once for each of its threads.
@functools.lru_cache(16384)
def number_list(text: str, what: str) -> frozenset[int]:
    """Parse a list of CPUs or nodes, for example ``0-3,8``; empty text: no items.

    Documentation/admin-guide/cputopology.rst and bitmap_print_to_pagebuf() in
    lib/bitmap.c.

    :raises HostStepFailed: the text is not such a list; ``what`` names its source.
    """
    found: set[int] = set()
    for part in text.split(",") if text else ():
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if first > last:
            raise HostStepFailed(
                f"{what} contains {text[:80]!r}, expected a list of numbers"
            )
        found.update(range(first, last + 1))
    return frozenset(found)


@dataclasses.dataclass(frozen=True, slots=True)
class ClassDevice:
    """One device of a class or bus.

    :ivar path: its directory, below the root.
    :ivar owner: its PCI function; None for a virtual device.
    :ivar ancestors: the names of its ancestors, topmost first.
    """

    name: str
    path: str
    owner: PciAddress | None
    ancestors: tuple[str, ...]


def class_devices(root: str, listing: str) -> list[ClassDevice]:
    """Return the devices of a class or bus, sorted by name; none if it is missing.

    :param listing: the directory with their links, below the root.
    :raises HostStepFailed: it exists and cannot be read.
    """
    directory = os.path.join(root, listing)
    found = []
    for name in _links(directory):
        path = f"{directory}/{name}"
        target = link_target(path)
        if target is not None:
            ancestors = tuple(target.split("/")[:-1])
            owner = nearest_function(ancestors)
            found.append(ClassDevice(name, path, owner, ancestors))
    return found


def _links(directory: str) -> list[str]:
    # A class may contain plain files: /sys/class/net/bonding_masters.
    try:
        with os.scandir(directory) as entries:
            return sorted([entry.name for entry in entries if entry.is_symlink()])
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreadable(directory, error) from error


# The devices of a function have the same ancestors in each scan.
@functools.lru_cache(16384)
def nearest_function(ancestors: tuple[str, ...]) -> PciAddress | None:
    """Return the last PCI function of a path; those before it are bridges."""
    for name in reversed(ancestors):
        # Cheaper than an exception for each name of another form.
        if ":" in name and "." in name and (found := function_named(name)):
            return found
    return None


def unreadable(path: str, error: OSError) -> HostStepFailed:
    """Return the error for a path that cannot be read."""
    return HostStepFailed(
        f"cannot read {path}: {error.strerror}", errno=error.errno or 0
    )


def boot_id(root: str) -> str:
    """Return the UUID that the kernel generated at boot.

    Documentation/admin-guide/sysctl/kernel.rst, "random".

    :raises HostStepFailed: it cannot be read, or is not a UUID.
    """
    path = os.path.join(root, "proc/sys/kernel/random/boot_id")
    text = read_text(path)
    parsed = canonical_uuid(text)
    if parsed is None:
        raise HostStepFailed(
            f"{path} contains {text!r}, expected a UUID",
            hint="check that /proc is mounted",
        )
    return parsed
