# SPDX-License-Identifier: Apache-2.0

"""The PCI functions and IOMMU groups of the host: a scan of all, or a reread of one.

Neither ``sriov_numvfs`` nor ``uevent`` is read: both take the device's lock
(drivers/pci/iov.c; uevent_show() in drivers/base/core.c of many kernels from 6.1
to 6.14), which an unbind that waits for a guest may hold for hours. ``modalias``
and the ``driver`` link provide the same information without the lock.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from types import MappingProxyType
from typing import TypeAlias, TypeVar

from os_acc.exception import (
    HostStepFailed,
    InvalidInput,
    NotFound,
    ObjectKind,
    OsAccError,
    StepReason,
    is_exhaustion,
)
from os_acc.host import vfio
from os_acc.host.attributes import (
    DEVICES,
    class_devices,
    function_path,
    link_address,
    link_name,
    link_target,
    mode,
    names,
    nearest_function,
    number,
    read_text,
)
from os_acc.objects import nvme
from os_acc.objects.lease import PriorBinding
from os_acc.objects.mdev import DeviceName, MdevType, function_of
from os_acc.objects.pci import (
    IommuGroup,
    PciAddress,
    PciFunction,
    PciIdentity,
    function_named,
    parse_modalias,
    part_of_device,
)

#: A PF, or a parent that has a capacity of its own.
Card: TypeAlias = PciAddress | str


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """The result of one scan; the mappings are read-only and sorted by key.

    :ivar netdevs: the PCI function of each PCI network interface.
    :ivar unreadable: errors of unreadable objects, by name (a PCI address or
        ``iommu group <n>``); these objects are missing from the other mappings.
    """

    functions: Mapping[PciAddress, PciFunction]
    groups: Mapping[int, IommuGroup]
    netdevs: Mapping[str, PciAddress]
    unreadable: Mapping[str, OsAccError] = dataclasses.field(compare=False)

    def function(self, address: PciAddress) -> PciFunction:
        """Return one function.

        :raises NotFound: there is none at this address.
        """
        if (found := self.functions.get(address)) is not None:
            return found
        text = f"no PCI function {address} on this host"
        if (reason := self.unreadable.get(str(address))) is not None:
            text = f"{address} is unreadable: {reason}"
        raise NotFound(text, kind=ObjectKind.DEVICE) from reason

    def card_of(self, place: DeviceName) -> Card:
        """Return the PF whose VFs share one capacity, or the only parent that has it.

        :param place: a function, or a type of mediated devices.
        """
        address = function_of(place)
        if address is None:
            assert isinstance(place, MdevType)
            return place.parent
        function = self.functions.get(address)
        return function.physfn if function and function.physfn else address

    def group_of(self, function: PciFunction) -> IommuGroup:
        """Return the IOMMU group of one function.

        :raises HostStepFailed: it has no group, or the group is unreadable.
        """
        address, number = function.address, function.iommu_group
        if number is None:
            text, hint = f"{address} is in no IOMMU group", ""
        elif (found := self.groups.get(number)) is not None:
            return found
        else:
            text = f"IOMMU group {number} of {address} cannot be read"
            hint = str(self.unreadable.get(f"iommu group {number}", ""))
        raise HostStepFailed(
            text, address=str(address), hint=hint, reason=StepReason.IOMMU
        )


_T = TypeVar("_T")

_HOST_BRIDGE = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}", re.ASCII)
_VIRTFN = re.compile(r"virtfn([0-9]{1,5})", re.ASCII)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OTHERS_MAY_READ = 0o004


def scan(root: str) -> Host:
    """Read every PCI function, IOMMU group and PCI network interface.

    Objects removed during the scan are omitted. Unreadable objects are omitted and
    reported in ``Host.unreadable``, so that a faulty device does not affect others.

    :raises HostStepFailed: the names of the devices cannot be read.
    """
    unreadable: dict[str, OsAccError] = {}
    functions = _read_functions(root, unreadable)
    groups = vfio.read_iommu_groups(root, unreadable)
    return Host(
        functions=MappingProxyType(functions),
        groups=MappingProxyType(groups),
        netdevs=MappingProxyType(netdevs(root)),
        unreadable=MappingProxyType(unreadable),
    )


def netdevs(root: str) -> dict[str, PciAddress]:
    """Return the PCI function of each PCI network interface, by name.

    :raises HostStepFailed: the kernel reports an error.
    """
    found = {each.name: each.owner for each in class_devices(root, "sys/class/net")}
    return {name: owner for name, owner in found.items() if owner is not None}


def has_bus(root: str, address: PciAddress) -> bool:
    """Return whether a function has its own PCI bus behind it, like VMD.

    VMD has the class of a storage controller (drivers/pci/controller/vmd.c).
    """
    below = names(function_path(root, address))
    return any(map(_HOST_BRIDGE.fullmatch, below))


def mdev_types(root: str, address: PciAddress) -> frozenset[str]:
    """Return the types of mediated devices that a function's driver offers.

    Documentation/ABI/testing/sysfs-bus-vfio-mdev.

    :raises HostStepFailed: they exist and cannot be listed.
    """
    return frozenset(names(function_path(root, address, "mdev_supported_types")))


def read_parents(
    root: str, addresses: Iterable[PciAddress]
) -> Mapping[PciAddress, PciAddress]:
    """Return the parent of each function: a bridge, or an endpoint with a bus.

    A function on a root bus, or a removed one, has none. A VF is a sibling of its
    PF, not a child (pci_iov_add_virtfn() in drivers/pci/iov.c).

    :raises HostStepFailed: the kernel reports an error.
    """
    found = {}
    for address in addresses:
        target = link_target(function_path(root, address))
        above = nearest_function(tuple(target.split("/")[:-1])) if target else None
        if above is not None:
            found[address] = above
    return found


def twins(
    functions: Mapping[PciAddress, PciFunction], known: Iterable[PriorBinding]
) -> Mapping[PciAddress, PciAddress]:
    """Return the drives with equal serial numbers, each with another one of its vendor.

    Nothing would tell them apart once they exchange their addresses.

    :param known: functions of leases: on a driver for guests, a drive shows no number.
    """
    numbers = {at: each.identity for at, each in functions.items()}
    for old in known:
        now = numbers.get(old.address)
        if now is not None and not now.drive and now.may_be(old.identity):
            numbers[old.address] = old.identity
    found = defaultdict[tuple[str, tuple[int, ...]], list[PciAddress]](list)
    for address, identity in numbers.items():
        if identity.drive:
            found[identity.key].append(address)
    several = [each for each in found.values() if len(each) > 1]
    return {at: each[at == each[0]] for each in several for at in each}


def _read_functions(
    root: str, unreadable: MutableMapping[str, OsAccError]
) -> dict[PciAddress, PciFunction]:
    """Return all functions, sorted; add errors of functions to ``unreadable``."""
    found: dict[PciAddress, PciFunction] = {}
    path = os.path.join(root, DEVICES)
    parent = _open(path)
    if parent is None:
        return found
    try:
        # Sorted by address: a longer name has a higher domain.
        for name in sorted(names(parent), key=len):
            if (address := function_named(name)) is None:
                continue
            try:
                function = _read_at(name, parent, address, _read)
            except HostStepFailed as error:
                if is_exhaustion(error):
                    raise
                unreadable[name] = error
                continue
            if function is not None:
                found[address] = function
    finally:
        os.close(parent)
    return found


def read_function(root: str, address: PciAddress) -> PciFunction | None:
    """Return the current state of one function; None if it does not exist.

    :raises HostStepFailed: the kernel reports an error or malformed data.
    """
    return _read_at(function_path(root, address), None, address, _read)


def read_driver(root: str, address: PciAddress) -> str | None:
    """Return the driver of a function; None if it has none, or is gone.

    :raises HostStepFailed: the kernel reports an error.
    """
    return link_name(function_path(root, address, "driver"))


def read_binding(root: str, address: PciAddress) -> PriorBinding | None:
    """Return a function's identity, driver and override; None if it is gone.

    The call may block while a write to this function is stuck: before Linux 7.0
    a read of ``driver_override`` takes the device's lock.

    :raises HostStepFailed: the kernel reports an error or malformed data.
    """
    path = function_path(root, address)
    return _read_at(path, None, address, _read_binding)


def _open(path: str, parent: int | None = None) -> int | None:
    try:
        return os.open(path, _DIRECTORY, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV):
            return None
        raise HostStepFailed(
            f"cannot open {path}: {error.strerror}", errno=error.errno or 0
        ) from error


def _read_at(
    path: str,
    parent: int | None,
    address: PciAddress,
    read: Callable[[int, PciAddress], _T | None],
) -> _T | None:
    try:
        fd = _open(path, parent)
        if fd is None:
            return None
        try:
            return read(fd, address)
        finally:
            os.close(fd)
    except HostStepFailed as error:
        raise HostStepFailed(
            f"{address}: {error.message}", address=str(address), errno=error.errno
        ) from error


def _read_binding(fd: int, address: PciAddress) -> PriorBinding | None:
    driver = link_name("driver", dir_fd=fd)
    override = read_text("driver_override", dir_fd=fd)
    found = _read_identity(fd, address, link_address("physfn", dir_fd=fd))
    if found is None:
        return None
    # The kernel prints an unset override with "%s" of a null pointer.
    is_set = override not in (None, "", "(null)")
    return PriorBinding(address, found[0], driver, override if is_set else None)


def _read(fd: int, address: PciAddress) -> PciFunction | None:
    group = link_name("iommu_group", dir_fd=fd)
    driver = link_name("driver", dir_fd=fd)
    physfn = link_address("physfn", dir_fd=fd)
    # VFs have no sriov_totalvfs.
    total_vfs = 0 if physfn else _number(fd, "sriov_totalvfs") or 0
    vfs = _vfs(fd) if total_vfs else ()
    reset_methods = _reset_methods(fd)
    numa_node = _number(fd, "numa_node")
    # As pci_is_bridge() in include/linux/pci.h, never a VF; the configuration space of
    # a function without power would read as all ones.
    is_bridge = physfn is None and bool(mode("secondary_bus_number", dir_fd=fd))
    found = _read_identity(fd, address, physfn)
    if found is None:
        return None
    identity, class_code = found
    return PciFunction(
        address=address,
        identity=identity,
        class_code=class_code,
        driver=driver,
        iommu_group=None if group is None else number(group, "iommu_group"),
        numa_node=None if numa_node is None or numa_node < 0 else numa_node,
        reset_methods=reset_methods,
        physfn=physfn,
        total_vfs=total_vfs,
        vfs=vfs,
        has_bridge_header=is_bridge,
    )


def _read_identity(
    fd: int, address: PciAddress, physfn: PciAddress | None
) -> tuple[PciIdentity, int] | None:
    """Return the identity and the class of a function; None if it is gone.

    It is read last: without it, the function was removed in the meantime, and other
    absences are void.
    """
    modalias = read_text("modalias", dir_fd=fd)
    if modalias is None:
        return None
    try:
        *ids, class_code = parse_modalias(modalias)
    except InvalidInput as error:
        raise HostStepFailed(error.message) from error
    serial = _serial(fd)
    drive = _drive(fd, address, physfn) if class_code == nvme.CLASS else ""
    # Every function has a revision.
    revision = _number(fd, "revision")
    if revision is None:
        return None
    return _identity(*ids, revision, serial, drive), class_code


# The VFs of a card, and cards of one model, share names and numbers.
@functools.lru_cache(1024)
def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_identity = functools.lru_cache(1024)(PciIdentity)


def _number(fd: int, name: str) -> int | None:
    text = read_text(name, dir_fd=fd)
    return None if text is None else number(text, name)


def _reset_methods(fd: int) -> tuple[str, ...]:
    methods = read_text("reset_method", dir_fd=fd)
    if methods is not None:
        return _words(methods)
    # Before Linux 5.15 only the existence of "reset" indicates support; it is
    # write-only, so it cannot be opened here.
    return ("unknown",) if mode("reset", dir_fd=fd) else ()


def _vfs(fd: int) -> tuple[PciAddress, ...]:
    """Return the VFs of a PF in the order of their index."""
    found: dict[int, PciAddress] = {}
    for name in names(fd):
        match = _VIRTFN.fullmatch(name)
        if match is not None:
            address = link_address(name, dir_fd=fd)
            if address is not None:
                found[int(match[1])] = address
    return tuple([found[index] for index in sorted(found)])


def _drive(fd: int, address: PciAddress, physfn: PciAddress | None) -> str:
    """Return the identity of an NVMe function, which its driver shows to any user."""
    controllers = _open("physfn/nvme" if physfn else "nvme", fd)
    if controllers is None:
        return ""
    try:
        paths = (f"{name}/serial" for name in names(controllers))
        found = (read_text(each, dir_fd=controllers) for each in paths)
        serial = next(filter(None, found), "").strip()
    finally:
        os.close(controllers)
    return part_of_device(serial, address, physfn)


def _serial(fd: int) -> str:
    """Return the Device Serial Number if any user may read it (Linux 6.18).

    The identity must not depend on the reader: if only root may read the number,
    root ignores it as well.
    """
    if not mode("serial_number", dir_fd=fd) & _OTHERS_MAY_READ:
        return ""
    try:
        return read_text("serial_number", dir_fd=fd) or ""
    except HostStepFailed as error:
        # EIO by serial_number_show(): the function has no serial number.
        if error.errno == errno.EIO:
            return ""
        raise
