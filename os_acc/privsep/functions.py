# SPDX-License-Identifier: Apache-2.0

"""What privileged code reads of a PCI function, by itself.

It trusts nothing that the caller says: identity, group and driver are read
again immediately before, and after, every write.
"""

from __future__ import annotations

import errno
import os
import re

from os_acc import exception
from os_acc.objects.digest import Digest
from os_acc.objects.pci import PciAddress
from os_acc.privsep import kernel
from os_acc.privsep.outcome import CallResult, Outcome

VFIO_PCI = "vfio-pci"
# A driver's directory below /sys/bus/pci/drivers, never a path. Some have
# blanks in their names ("i6300ESB timer").
_DRIVER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+: -]{0,63}", re.ASCII)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
_IDENTITY = (
    "vendor",
    "device",
    "subsystem_vendor",
    "subsystem_device",
    "revision",
)
# ENODEV: it was pulled out between finding the attribute and reading it
# (kernfs_get_active() in fs/kernfs/file.c).
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV})
_DEADLINE_LIMIT_MS = 600_000


def parse_address(parts: object) -> PciAddress | None:
    """The address of four numbers; None where they are not one."""
    if not isinstance(parts, tuple | list) or len(parts) != 4:
        return None
    # A subclass of int may show itself as anything, and becomes a path.
    if not all(type(part) is int for part in parts):
        return None
    try:
        return PciAddress(*parts)
    except exception.InvalidPciAddress:
        return None


def is_number(value: object, limit: int) -> bool:
    """Whether a value is an integer from 0 to the limit (and no bool)."""
    return type(value) is int and 0 <= value <= limit


def is_identity(value: object) -> bool:
    """Whether a value is the five numbers of a PCI identity."""
    return (
        isinstance(value, tuple | list)
        and len(value) == 5
        and all(is_number(number, 0xFFFF) for number in value)
    )


def is_deadline(value: object) -> bool:
    """Whether a value is a deadline in milliseconds that a call may have."""
    return is_number(value, _DEADLINE_LIMIT_MS) and value != 0


def is_driver_name(value: object) -> bool:
    """Whether a value names a PCI driver; '' stands for none."""
    # What a subclass of str is written as need not be what it is matched as.
    return type(value) is str and (
        value == "" or _DRIVER_NAME.fullmatch(value) is not None
    )


def is_file_name(value: str) -> bool:
    """Whether a text is the name of one file in a directory."""
    return value not in ("", ".", "..") and "/" not in value and "\0" not in value


def is_uuid(value: object) -> bool:
    """Whether a value is a canonical UUID."""
    return type(value) is str and _UUID.fullmatch(value) is not None


def parse_digest(algorithm: object, digest: object) -> Digest | None:
    """The digest by which a cached image is found; None where it is none."""
    # What a subclass of str is written as need not be what it is matched as.
    if type(algorithm) is not str or type(digest) is not str:
        return None
    return Digest.of_file_name(f"{algorithm}-{digest}")


def directory(address: PciAddress) -> str:
    """The function's directory in sysfs."""
    return kernel.current.path("sys/bus/pci/devices", str(address))


def exists(address: PciAddress) -> bool:
    """Whether there is such a function at all.

    :raises OSError: the kernel does not say it.
    """
    try:
        os.stat(directory(address))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def identity(address: PciAddress) -> tuple[int, ...] | None:
    """Vendor, product, both subsystem ids and revision; None if gone."""
    place = directory(address)
    try:
        return tuple(
            int(kernel.current.read(os.path.join(place, name)), 16)
            for name in _IDENTITY
        )
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise


def changed(address: PciAddress, expected: tuple[int, ...]) -> CallResult | None:
    """What is there instead of the function with an identity; None: nothing."""
    found = identity(address)
    if found is None:
        return CallResult(Outcome.GONE, errno.ENODEV, "identity")
    if found != expected:
        ids = ":".join(f"{number:04x}" for number in found)
        return CallResult(Outcome.CHANGED, 0, "identity", ids)
    return None


def is_bridge(address: PciAddress) -> bool:
    """PCI class 06: taking a bridge from its driver takes all behind it."""
    return int(read(address, "class"), 16) >> 16 == 0x06


def _link(address: PciAddress, name: str) -> str:
    try:
        return os.path.basename(os.readlink(os.path.join(directory(address), name)))
    except (FileNotFoundError, NotADirectoryError):
        return ""


def driver(address: PciAddress) -> str:
    """The name of the driver that has the function; '' for none."""
    return _link(address, "driver")


def group(address: PciAddress) -> int | None:
    """The number of its IOMMU group."""
    text = _link(address, "iommu_group")
    return int(text) if text.isdigit() else None


def physical_function(address: PciAddress) -> PciAddress | None:
    """The PF of a VF; None where the function is no VF."""
    try:
        return PciAddress.parse(_link(address, "physfn"))
    except exception.InvalidPciAddress:
        return None


def total_vfs(address: PciAddress) -> int:
    """How many VFs the function can have; 0 where it is no PF."""
    try:
        return int(read(address, "sriov_totalvfs"))
    except FileNotFoundError:
        return 0


def override(address: PciAddress) -> str:
    """Its ``driver_override``; '' where none is set."""
    text = read(address, "driver_override")
    return "" if text == "(null)" else text


def set_override(address: PciAddress, text: str) -> None:
    """Set its ``driver_override``; '' clears it, which leaves its driver alone."""
    if override(address) != text:
        # A write of no bytes never reaches the kernel; a newline clears.
        write(address, "driver_override", text or "\n")


def unbind(address: PciAddress) -> None:
    """Take the function from its driver, where it has one."""
    if driver(address):
        write(address, "driver/unbind", str(address))


def rebind(address: PciAddress, name: str) -> None:
    """Hand the function to a driver, and to no other that matches it.

    The override comes first and stays: at every moment in between, also after
    a crash, a probe or a driver that is just being loaded leads to this one alone.
    """
    set_override(address, name)
    unbind(address)
    probe(address)


def count_vfs(address: PciAddress) -> int:
    """How many VFs exist, by their links.

    Reading ``sriov_numvfs`` takes the lock that a stuck write holds.
    """
    try:
        names = os.listdir(directory(address))
    except FileNotFoundError:
        return 0
    return sum(name.startswith("virtfn") for name in names)


def attribute(error: OSError) -> str:
    """The name of the attribute on which the kernel refused something."""
    return str(error.filename or "").rpartition("/")[2]


def read(address: PciAddress, attribute: str) -> str:
    """Read an attribute of the function."""
    return kernel.current.read(os.path.join(directory(address), attribute)).strip()


def write(address: PciAddress, attribute: str, text: str) -> None:
    """Write an attribute of the function."""
    kernel.current.write(os.path.join(directory(address), attribute), text)


def probe(address: PciAddress) -> None:
    """Let the bus offer the function to its drivers.

    Success says nothing about whether one took it (drivers/base/bus.c).
    """
    kernel.current.write(kernel.current.path("sys/bus/pci/drivers_probe"), str(address))
