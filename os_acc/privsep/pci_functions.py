# SPDX-License-Identifier: Apache-2.0

"""A PCI function, as root reads and writes it.

Nothing is taken from the caller: identity, group and driver are read again immediately
before and after every write.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterable, Iterator
from typing import Final

from os_acc import exception
from os_acc.objects import nvme
from os_acc.objects.drivers import NVIDIA, is_vfio_driver
from os_acc.objects.migration import MigrationSupport
from os_acc.objects.pci import (
    BUS_RESETS,
    CHIPSET,
    PciAddress,
    function_named,
    parse_modalias,
    part_of_device,
)
from os_acc.privsep import kernel
from os_acc.privsep.outcome import CallRefused, CallResult, Outcome

# ENODEV: the function was removed between finding the attribute and reading it
# (kernfs_get_active() in fs/kernfs/file.c).
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENODEV})
_GROUPS: Final = "sys/kernel/iommu_groups"
_UNHELD: Final = frozenset({0, errno.ENOENT, errno.ENODEV, errno.EPERM})
#: The step of a refusal because a process has the IOMMU group open.
HELD: Final = "vfio"
#: The step of a refusal because of a disk; ``observed`` is its name.
DISK: Final = "disk"
# With native multipath, the disk of the controller is a hidden path to another disk,
# which is below the subsystem (drivers/nvme/host/multipath.c).
_CONTROLLER: Final = re.compile(r"nvme[0-9]+", re.ASCII)
_NVME_PATH: Final = re.compile(r"(nvme[0-9]+)c[0-9]+(n[0-9]+)", re.ASCII)

# The disks that this process, a worker's child, has claimed.
_claimed: set[str] = set()


def directory(address: PciAddress) -> str:
    """Return the function's directory in sysfs."""
    return kernel.current.path("sys/bus/pci/devices", str(address))


def exists(address: PciAddress) -> bool:
    """Return whether the function exists; raise OSError if that is unknown."""
    try:
        os.stat(directory(address))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def present() -> list[PciAddress]:
    """Return all functions of the host."""
    names = kernel.current.names("sys/bus/pci/devices")
    return list(filter(None, map(function_named, names)))


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
    """Return whether a reset of this function has to reset its bus.

    The function is on a VFIO driver and has no other reset. It is the first of several
    on a bus behind a bridge, and one group has all of them.
    """
    place = os.path.realpath(directory(address))
    above, name = os.path.split(place)
    bus = name.rpartition(":")[0]
    found = sorted(each for each in os.listdir(above) if each.startswith(f"{bus}:"))
    return (
        is_vfio_driver(driver(address))
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
    """Return the name of the target of a link in a directory; '' if there is none."""
    try:
        return os.path.basename(os.readlink(os.path.join(place, name)))
    except (FileNotFoundError, NotADirectoryError):
        return ""


def driver(address: PciAddress) -> str:
    """Return the name of the function's driver; '' for none."""
    return link(directory(address), "driver")


def may_be_a_guests(address: PciAddress, driver: str) -> bool:
    """Return whether a guest may have a function that is on this driver."""
    # NVIDIA's driver may offer a function that is no vGPU, and not show one that is.
    if is_vfio_driver(driver) or driver == NVIDIA:
        return True
    # A driver offers it to guests (Documentation/ABI/testing/sysfs-devices-vfio-dev).
    return os.path.isdir(os.path.join(directory(address), "vfio-dev"))


def group(address: PciAddress) -> int | None:
    """Return the number of the IOMMU group, or None."""
    return group_of(directory(address))


def group_of(place: str) -> int | None:
    """Return the number of the IOMMU group of a device in sysfs, or None."""
    text = link(place, "iommu_group")
    return int(text) if text.isdigit() else None


def physical_function(address: PciAddress) -> PciAddress | None:
    """Return the PF of a VF; None for other functions."""
    return function_named(link(directory(address), "physfn"))


def serial(address: PciAddress) -> str:
    """Return the number that identifies a function in each slot; '' if unreadable.

    The nvme driver shows the serial number of a drive; see :func:`.record.twin_of`.
    Linux 6.18 shows the Device Serial Number of others; one that two cards have is
    none. A VF has that of its PF.
    """
    physfn = physical_function(address)
    place = physfn or address
    try:
        if int(read(address, "class"), 16) == nvme.CLASS:
            if (found := controller(place)) is None:
                return ""
            text = kernel.current.read(os.path.join(found, "serial")).strip()
        elif text := read(place, "serial_number"):
            others = (each for each in present() if not each.same_slot(place))
            if any(_shows(each, text) for each in others):
                return ""
    except OSError as error:
        # EIO by serial_number_show(): it has none.
        if error.errno in (*_GONE, errno.EIO):
            return ""
        raise
    return part_of_device(text, address, physfn)


def controller(address: PciAddress) -> str | None:
    """Return the directory of the only controller of an NVMe function, or None."""
    place = os.path.join(directory(address), "nvme")
    names = list(filter(_CONTROLLER.fullmatch, kernel.current.names(place)))
    return os.path.join(place, names[0]) if len(names) == 1 else None


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
    """Unbind the function; CallRefused: the host uses a disk of it."""
    if driver(address):
        with claimed_disks(directory(address)):
            write(address, "driver/unbind", str(address))


def rebind(address: PciAddress, name: str) -> None:
    """Bind the function to this driver, also if others match.

    The override is set first and stays: at every moment in between, also after
    a crash, a probe or a newly loaded driver leads to this driver alone.

    :raises CallRefused: the host uses a disk of it; nothing is changed.
    """
    with claimed_disks(directory(address)):
        set_override(address, name)
        unbind(address)
    probe(address)


def vfs(address: PciAddress) -> list[PciAddress]:
    """Return the existing VFs of a function, sorted."""
    return sorted(numbered_vfs(address).values())


def numbered_vfs(address: PciAddress) -> dict[int, PciAddress]:
    """Return the existing VFs of a PF by their numbers, from 1, as the PF counts.

    ``sriov_numvfs`` is not read: that takes the lock that a stuck write holds.
    """
    found: dict[int, PciAddress] = {}
    for name in kernel.current.names(directory(address)):
        if name.startswith("virtfn"):
            vf = function_named(link(directory(address), name))
            # It may be removed meanwhile.
            if vf is not None:
                found[int(name.removeprefix("virtfn")) + 1] = vf
    return found


def mediated_devices(address: PciAddress) -> list[str]:
    """Return the UUIDs of the mediated devices of the function, sorted.

    The driver may have registered a device below the function as their parent.
    """
    place = os.path.realpath(directory(address)) + os.sep
    devices = kernel.current.path("sys/bus/mdev/devices")
    return [
        name
        for name in kernel.current.names(devices)
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
    """Raise CallRefused, EBUSY, if a function has VFs, which would lose their PF."""
    if count := len(vfs(address)):
        raise CallRefused(Outcome.REFUSED, errno.EBUSY, "sriov_numvfs", str(count))


def read(address: PciAddress, attribute: str) -> str:
    """Read an attribute of the function."""
    return kernel.current.read(os.path.join(directory(address), attribute)).strip()


def write(address: PciAddress, attribute: str, text: str) -> None:
    """Write an attribute of the function."""
    kernel.current.write(os.path.join(directory(address), attribute), text)


def check(address: PciAddress, attribute: str, text: str) -> None:
    """Raise CallRefused, NO_EFFECT, unless an attribute shows this text."""
    observed = read(address, attribute)
    if observed != text:
        raise CallRefused(Outcome.NO_EFFECT, 0, attribute, observed)


def check_driver(address: PciAddress, name: str, override_text: str) -> None:
    """Raise CallRefused, NO_EFFECT, unless a function has this driver and override."""
    if (found := driver(address)) != name:
        raise CallRefused(Outcome.NO_EFFECT, 0, "driver", found)
    if (found := override(address)) != override_text:
        raise CallRefused(Outcome.NO_EFFECT, 0, "driver_override", found)


def probe(address: PciAddress) -> None:
    """Have the bus probe the function's drivers.

    Success does not imply that a driver was bound (drivers/base/bus.c).
    """
    kernel.current.write(kernel.current.path("sys/bus/pci/drivers_probe"), str(address))


def may_be_leaving(place: str) -> bool:
    """Return whether a device without a driver may wait for a process, unseen.

    Linux 6.6 and later remove the node of a device before they wait for its holder
    (vfio_unregister_group_dev() in drivers/vfio/vfio_main.c).
    """
    has_iommufd = os.path.exists(kernel.current.path("dev/iommu"))
    return has_iommufd and os.path.exists(place) and not link(place, "driver")


def probe_group(number: int) -> int:
    """Return EBUSY if a process holds a device of an IOMMU group; 0, or an error.

    The node of the group answers without side effects, also for a device open through
    its own node. With iommufd alone, each function of the group on a VFIO driver is
    bound, which resets it. A driver of the host might not expect that.
    """
    if (error := kernel.current.probe_vfio_group(number)) != errno.ENOENT:
        return error
    names = kernel.current.names(_GROUPS, str(number), "devices")
    found = filter(None, map(function_named, names))
    return probe_devices(str(each) for each in found if is_vfio_driver(driver(each)))


def probe_devices(names: Iterable[str]) -> int:
    """Answer as :func:`probe_group` for functions, or mediated devices, by iommufd."""
    errors = map(kernel.current.probe_vfio_device, names)
    # EPERM beside no EBUSY: a driver of the host has the group, and no guest can.
    return next((each for each in errors if each not in _UNHELD), 0)


def check_unheld(group_number: int | None) -> None:
    """Check that no process holds a device of a group: a write would wait for it.

    :param group_number: None: the function has no group, and VFIO cannot have it.
    :raises CallRefused: IN_USE, or UNSURE.
    """
    if group_number is None:
        return
    if error := probe_group(group_number):
        is_held = error == errno.EBUSY
        raise CallRefused(Outcome.IN_USE if is_held else Outcome.UNSURE, error, HELD)


def reset(address: PciAddress) -> None:
    """Reset a function, so that it leaves no data for the next user.

    A function without a reset method is left as it is: either the operator allowed
    that, or the reset of the first function of its bus has reset this one as well.
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
    """Reset a function and the others of its bus; OSError: they are not reset."""
    try:
        kernel.current.hot_reset(group(address) or 0, str(address))
    except OSError as error:
        raise OSError(error.errno, error.strerror, "reset of its bus") from error


@contextlib.contextmanager
def claimed_disks(place: str) -> Iterator[None]:
    """Keep the disks below a directory of sysfs open exclusively.

    A client inside the kernel, as the journal of a file system or ZFS, leaves no trace
    in sysfs or procfs. It has opened the disk or a partition exclusively, so that no
    other exclusive open of the disk succeeds (bd_prepare_to_claim() in block/bdev.c).
    An open for reading makes udev look at nothing when it is closed.

    :raises CallRefused: IN_USE: a disk is in use; UNSURE: it cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        for name, number in sorted(disks_below(place).items()):
            if name in _claimed:
                continue
            try:
                node = kernel.current.path("dev", name)
                # O_NONBLOCK: also a drive without a medium.
                flags = os.O_RDONLY | os.O_NONBLOCK
                stack.callback(os.close, kernel.current.open_disk(node, number, flags))
            except OSError as error:
                raise disk_in_use(name, error) from error
            stack.callback(_claimed.discard, name)
            _claimed.add(name)
        yield


def disk_in_use(name: str, error: OSError) -> CallRefused:
    """Return the refusal for a disk that cannot be opened exclusively."""
    outcome = Outcome.IN_USE if error.errno == errno.EBUSY else Outcome.UNSURE
    return CallRefused(outcome, error.errno or errno.EIO, DISK, name)


def disks_below(place: str) -> dict[str, str]:
    """Return the device numbers of the disks below a directory of sysfs, by name."""
    found: dict[str, str] = {}
    for path, _, files in os.walk(os.path.realpath(place)):
        # An exclusive open of the disk covers its partitions.
        if "partition" not in files:
            name = _NVME_PATH.sub(r"\1\2", os.path.basename(path))
            # It is no disk, or leaves at this moment.
            with contextlib.suppress(FileNotFoundError):
                number = kernel.current.path("sys/class/block", name, "dev")
                found[name] = kernel.current.read(number).strip()
    return found


def migration(group: int | None, name: str) -> CallResult:
    """Return OK, with what VFIO answers about the migration of a free device.

    :param name: of a function, or the UUID of a mediated device.
    """
    try:
        flags, size = kernel.current.migration(group, name)
    except OSError as error:
        # The plug does not depend on it: the next one asks again.
        return CallResult(Outcome.OK, error.errno or errno.EIO, "migration")
    return CallResult(
        Outcome.OK, 0, "migration", MigrationSupport(flags, size).encoded()
    )
