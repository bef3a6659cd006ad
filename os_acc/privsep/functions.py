# SPDX-License-Identifier: Apache-2.0

"""Access to a PCI function, as privileged code performs it.

It does not trust the caller: identity, group and driver are read again
immediately before and after every write.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from typing import Final, TypeGuard

from os_acc import exception
from os_acc.objects import nvme, vfio_driver
from os_acc.objects.pci import (
    BUS_RESETS,
    CHIPSET,
    PciAddress,
    parse_modalias,
    part_of_device,
)
from os_acc.privsep import disks, kernel
from os_acc.privsep.outcome import CallRefused, Outcome

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)
# ENODEV: the function was removed between finding the attribute and reading it
# (kernfs_get_active() in fs/kernfs/file.c).
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV})
# As long as the name of a provider in Placement.
_LONGEST_TEXT = 200
#: The step of a refusal because a process has the IOMMU group open.
HELD: Final = "vfio"


def is_number(value: object, limit: int) -> TypeGuard[int]:
    """Return whether a value is an integer from 0 to the limit (and no bool)."""
    return type(value) is int and 0 <= value <= limit


def is_identity(value: object) -> TypeGuard[tuple[int, ...] | list[int]]:
    """Return whether a value is the five numbers of a PCI identity."""
    return (
        isinstance(value, tuple | list)
        and len(value) == 5
        and all(is_number(number, 0xFFFF) for number in value)
    )


def is_driver_name(value: object) -> bool:
    """Return whether a value names a PCI driver, or a plugin; '' stands for none."""
    return (type(value) is str and value == "") or vfio_driver.is_name(value)


def is_uuid(value: object) -> TypeGuard[str]:
    """Return whether a value is a canonical UUID."""
    return type(value) is str and _UUID.fullmatch(value) is not None


def directory(address: PciAddress) -> str:
    """Return the function's directory in sysfs."""
    return kernel.current.path("sys/bus/pci/devices", str(address))


def exists(address: PciAddress) -> bool:
    """Return whether the function exists.

    :raises OSError: the kernel gives no information.
    """
    try:
        os.stat(directory(address))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def present() -> list[PciAddress]:
    """Return all functions of the host."""
    return [
        address
        for name in sorted(os.listdir(kernel.current.path("sys/bus/pci/devices")))
        if (address := _parse(name)) is not None
    ]


def _parse(name: str) -> PciAddress | None:
    try:
        return PciAddress.parse(name)
    except exception.InvalidInput:
        return None


def identity(address: PciAddress) -> tuple[int, ...] | None:
    """Return vendor, product, both subsystem ids and revision; None if gone."""
    try:
        *ids, _class = parse_modalias(read(address, "modalias"))
        return (*ids, int(read(address, "revision"), 16))
    except exception.InvalidInput as error:
        raise OSError(errno.EPROTO, error.message, "modalias") from error
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise


def check_identity(address: PciAddress, expected: tuple[int, ...]) -> None:
    """Check that a function is on the bus, and the expected one.

    :raises CallRefused: GONE or CHANGED.
    """
    found = identity(address)
    if found is None:
        raise gone()
    if found != expected:
        ids = ":".join(f"{number:04x}" for number in found)
        raise CallRefused(Outcome.CHANGED, 0, "identity", ids)


def check_exists(*addresses: PciAddress) -> None:
    """Check that functions are on the bus.

    :raises CallRefused: GONE.
    :raises OSError: the kernel gives no information.
    """
    if not all(map(exists, addresses)):
        raise gone()


def gone() -> CallRefused:
    """Return the refusal of a device that has left the host."""
    return CallRefused(Outcome.GONE, errno.ENODEV, "identity")


def is_bridge(address: PciAddress) -> bool:
    """Return whether the function is a bridge, or belongs to the chipset.

    Unbinding a bridge removes all devices behind it. Only a bridge has a secondary bus
    (pci_bridge_attrs_are_visible() in drivers/pci/pci-sysfs.c).
    """
    if int(read(address, "class"), 16) >> 8 in CHIPSET:
        return True
    try:
        os.stat(os.path.join(directory(address), "secondary_bus_number"))
    except FileNotFoundError:
        return False
    return True


def resets_with_bus(address: PciAddress) -> bool:
    """Return whether VFIO has a function, and it is the one to reset with its bus.

    It is the first of several functions of a bus behind a bridge, all of one group, and
    has no other reset.
    """
    place = os.path.realpath(directory(address))
    above, name = os.path.split(place)
    bus = name.rpartition(":")[0]
    found = sorted(each for each in os.listdir(above) if each.startswith(f"{bus}:"))
    return (
        vfio_driver.is_vfio_driver(driver(address))
        and found[:1] == [name] != found
        and len({group(PciAddress.parse(each)) for each in found}) == 1
        and not os.path.basename(above).startswith("pci")
        and not resets_alone(address)
    )


def resets_alone(address: PciAddress) -> bool:
    """Return whether a function has a reset that leaves the rest of its bus alone."""
    try:
        return not BUS_RESETS.issuperset(read(address, "reset_method").split())
    except FileNotFoundError:
        # Before Linux 5.15 no attribute names the methods.
        return os.path.exists(os.path.join(directory(address), "reset"))


def link(place: str, name: str) -> str:
    """Return the name of what a link in a directory leads to; '' if there is none."""
    try:
        return os.path.basename(os.readlink(os.path.join(place, name)))
    except (FileNotFoundError, NotADirectoryError):
        return ""


def driver(address: PciAddress) -> str:
    """Return the name of the function's driver; '' for none."""
    return link(directory(address), "driver")


def is_text(value: object) -> bool:
    """Return whether a value is the name of a compute node, a serial number, or ''."""
    return type(value) is str and len(value) <= _LONGEST_TEXT and value.isprintable()


def may_be_a_guests(address: PciAddress, driver: str) -> bool:
    """Return whether a guest may have a function that is on this driver."""
    # NVIDIA's driver may offer a function that is no vGPU, and not show one that is.
    if vfio_driver.is_vfio_driver(driver) or driver == vfio_driver.NVIDIA:
        return True
    # A driver offers it to guests (Documentation/ABI/testing/sysfs-devices-vfio-dev).
    return os.path.isdir(os.path.join(directory(address), "vfio-dev"))


def group(address: PciAddress) -> int | None:
    """Return the number of the function's IOMMU group, or None."""
    text = link(directory(address), "iommu_group")
    return int(text) if text.isdigit() else None


def physical_function(address: PciAddress) -> PciAddress | None:
    """Return the PF of a VF; None for other functions."""
    return _parse(link(directory(address), "physfn"))


def serial(address: PciAddress) -> str:
    """Return what identifies a function in each slot; '' if it cannot be read now.

    The nvme driver shows the serial number of a drive, Linux 6.18 the Device Serial
    Number of others; one that two cards have is none. A VF has that of its PF.
    """
    physfn = physical_function(address)
    place = physfn or address
    try:
        if int(read(address, "class"), 16) == nvme.CLASS:
            controllers = os.path.join(directory(place), "nvme")
            (name,) = os.listdir(controllers)
            path = os.path.join(controllers, name, "serial")
            text = kernel.current.read(path).strip()
        elif text := read(place, "serial_number"):
            others = (each for each in present() if not each.same_slot(place))
            if any(_shows(each, text) for each in others):
                return ""
    except ValueError:
        # No controller, or several.
        return ""
    except OSError as error:
        # EIO by serial_number_show(): it has none.
        if error.errno in (*_GONE, errno.EIO):
            return ""
        raise
    return part_of_device(text, address, physfn)


def _shows(address: PciAddress, serial_number: str) -> bool:
    with contextlib.suppress(OSError):
        is_equal = read(address, "serial_number") == serial_number
        return is_equal and physical_function(address) is None
    return False


def total_vfs(address: PciAddress) -> int:
    """Return the number of VFs that the function supports; 0 if it is no PF."""
    try:
        return int(read(address, "sriov_totalvfs"))
    except FileNotFoundError:
        return 0


def override(address: PciAddress) -> str:
    """Return ``driver_override``; '' if none is set."""
    text = read(address, "driver_override")
    return "" if text == "(null)" else text


def set_override(address: PciAddress, text: str) -> None:
    """Set ``driver_override``; '' clears it. The driver stays bound."""
    if override(address) != text:
        # An empty write never reaches the kernel; a newline clears.
        write(address, "driver_override", text or "\n")


def unbind(address: PciAddress) -> None:
    """Unbind the function from its driver, if any.

    :raises CallRefused: the host uses a disk of it.
    """
    if driver(address):
        with disks.claimed(directory(address)):
            write(address, "driver/unbind", str(address))


def rebind(address: PciAddress, name: str) -> None:
    """Bind the function to this driver, also if others match.

    The override is set first and stays: at every moment in between, also after
    a crash, a probe or a newly loaded driver leads to this driver alone.

    :raises CallRefused: the host uses a disk of it; nothing is changed.
    """
    with disks.claimed(directory(address)):
        set_override(address, name)
        unbind(address)
    probe(address)


def vfs(address: PciAddress) -> list[PciAddress]:
    """Return the existing VFs of a function by their links, sorted.

    Reading ``sriov_numvfs`` would take the lock that a stuck write holds.
    """
    try:
        names = os.listdir(directory(address))
    except FileNotFoundError:
        return []
    links = (
        link(directory(address), name) for name in names if name.startswith("virtfn")
    )
    # One may be removed meanwhile.
    return sorted(filter(None, map(_parse, links)))


def mediated_devices(address: PciAddress) -> list[str]:
    """Return the UUIDs of the mediated devices of the function, sorted.

    The driver may have registered a device below the function as their parent.
    """
    place = os.path.realpath(directory(address)) + os.sep
    devices = kernel.current.path("sys/bus/mdev/devices")
    try:
        names = sorted(os.listdir(devices))
    except FileNotFoundError:
        return []
    return [
        name
        for name in names
        if os.path.realpath(os.path.join(devices, name)).startswith(place)
    ]


def check_undivided(address: PciAddress) -> None:
    """Check that a function has no parts that end when it leaves its driver.

    They are VFs (pci_disable_sriov() in the drivers' remove()) and mediated devices
    (mdev_unregister_parent()), which other users of the host may have made.

    :raises CallRefused: IN_PARTS.
    """
    if count := len(vfs(address)):
        found = f"{count} VF" if count == 1 else f"{count} VFs"
    elif mdevs := mediated_devices(address):
        found = f"the mediated device {mdevs[0]}"
    else:
        return
    raise CallRefused(Outcome.IN_PARTS, errno.EBUSY, str(address), found)


def check_without_vfs(address: PciAddress) -> None:
    """Check that a function has no VFs, which would lose their PF.

    :raises CallRefused: REFUSED, EBUSY.
    """
    if count := len(vfs(address)):
        raise CallRefused(Outcome.REFUSED, errno.EBUSY, "sriov_numvfs", str(count))


def read(address: PciAddress, attribute: str) -> str:
    """Read an attribute of the function."""
    return kernel.current.read(os.path.join(directory(address), attribute)).strip()


def write(address: PciAddress, attribute: str, text: str) -> None:
    """Write an attribute of the function."""
    kernel.current.write(os.path.join(directory(address), attribute), text)


def check(address: PciAddress, attribute: str, text: str) -> None:
    """Check what an attribute shows after a write.

    :raises CallRefused: it shows another text.
    """
    observed = read(address, attribute)
    if observed != text:
        raise CallRefused(Outcome.NO_EFFECT, 0, attribute, observed)


def check_driver(address: PciAddress, name: str, override_text: str) -> None:
    """Check that a function has this driver and this override now.

    :raises CallRefused: it has another one.
    """
    if (found := driver(address)) != name:
        raise CallRefused(Outcome.NO_EFFECT, 0, "driver", found)
    if (found := override(address)) != override_text:
        raise CallRefused(Outcome.NO_EFFECT, 0, "driver_override", found)


def probe(address: PciAddress) -> None:
    """Have the bus probe the function's drivers.

    Success does not imply that a driver was bound (drivers/base/bus.c).
    """
    kernel.current.write(kernel.current.path("sys/bus/pci/drivers_probe"), str(address))


def check_unheld(group_number: int) -> None:
    """Check that no process has an IOMMU group open: a write would wait for it.

    :raises CallRefused: IN_USE, or UNSURE.
    """
    error = kernel.current.probe_vfio_group(group_number)
    if error not in (0, errno.ENOENT):
        is_held = error == errno.EBUSY
        raise CallRefused(Outcome.IN_USE if is_held else Outcome.UNSURE, error, HELD)


def reset(address: PciAddress) -> None:
    """Reset a function, so that it leaves no data for the next user.

    Without a reset method, either the operator allowed the device explicitly, or the
    first function of its bus was reset before, and this one with it.
    """
    if resets_with_bus(address):
        try:
            reset_bus(address)
        except OSError as error:
            # The kernel does not reset this bus: take has failed, and no guest had it.
            if error.errno != errno.ENODEV:
                raise
        return
    try:
        write(address, "reset", "1")
    except FileNotFoundError:
        return
    except OSError as error:
        # This method works only while a function is alone on its bus.
        if error.errno != errno.ENOTTY or read(address, "reset_method") != "bus":
            raise


def reset_bus(address: PciAddress) -> None:
    """Reset a function and the others of its bus, which VFIO has.

    :raises OSError: they are not reset.
    """
    try:
        kernel.current.hot_reset(group(address) or 0, str(address))
    except OSError as error:
        raise OSError(error.errno, error.strerror, "reset of its bus") from error
