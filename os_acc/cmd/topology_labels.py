# SPDX-License-Identifier: Apache-2.0

"""The host that ``os-acc topology`` draws, and the texts that describe its parts."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from os_acc.cmd import base
from os_acc.cmd.device_states import DeviceState
from os_acc.host.pci import Host
from os_acc.host.pci_ids import ModelNames
from os_acc.numa.policies import GuestCells, allows
from os_acc.objects.lease import Lease
from os_acc.objects.mdev import DeviceAddress, DeviceName
from os_acc.objects.numa import Affinity, NUMACell, NUMAPolicy, NUMATopology
from os_acc.objects.pci import PciAddress, PciFunction, PciRole
from os_acc.objects.request_group import AttachTarget

# PCI Code and ID Assignment Specification, base classes.
_CLASSES = {
    0x01: "storage",
    0x02: "network",
    0x03: "display",
    0x04: "multimedia",
    0x05: "memory",
    0x06: "bridge",
    0x07: "communication",
    0x08: "system",
    0x0B: "processor",
    0x0C: "serial bus",
    0x10: "encryption",
    0x11: "signal processing",
    0x12: "accelerator",
    0x40: "co-processor",
    0xFF: "other",
}
_AFFINITIES = {
    Affinity.LOCAL: "local",
    Affinity.UNKNOWN: "unknown distance",
    Affinity.SAME_SOCKET: "same socket",
    Affinity.REMOTE: "remote",
}
_TARGETS = {
    AttachTarget.HOST: "the host has it for that guest",
    AttachTarget.NONE: "kept for that guest",
}
_FEW = 3


@dataclasses.dataclass(frozen=True, slots=True)
class HostSnapshot:
    """A host at one moment.

    :ivar name: name of the compute node.
    :ivar states: states of the functions that os_acc may use.
    :ivar parents: the direct parent of each function that is not on a root bus.
    :ivar free: the NUMA nodes of the free accelerators, by resource class.
    :ivar guest: the guest of the drawing; None: no particular guest.
    :ivar models: the model names of functions, as far as they are known.
    """

    name: str
    host: Host
    states: Mapping[DeviceAddress | DeviceName, DeviceState]
    parents: Mapping[PciAddress, PciAddress]
    topology: NUMATopology
    free: Mapping[str, Sequence[int | None]]
    guest: GuestCells | None
    models: ModelNames = dataclasses.field(default_factory=ModelNames)

    @property
    def functions(self) -> Mapping[PciAddress, PciFunction]:
        """Every function of the host."""
        return self.host.functions

    def affinity(self, node: int | None) -> Affinity | None:
        """Return the affinity of a node to the guest; None without a guest."""
        return self.guest.affinity(node) if self.guest else None


def addresses(
    some: Iterable[PciAddress], neighbours: Sequence[PciAddress] | None = None
) -> str:
    """Format addresses as ranges, for example ``0000:3b:02.0-03.7, 04.1``.

    :param neighbours: addresses that a range must not skip; default: the given
        ones.
    """
    wanted = set(some)
    order = sorted(wanted) if neighbours is None else neighbours
    parts = []
    before = None
    for first, last in _runs([each in wanted for each in order]):
        text = _short(order[first], before)
        if last > first:
            text += f"-{_short(order[last], order[first])}"
        parts.append(text)
        before = order[last]
    return ", ".join(parts)


def numbers(some: Collection[int]) -> str:
    """Format numbers as ranges, for example ``0-7,16``."""
    order = range(min(some, default=0), max(some, default=-1) + 1)
    runs = _runs([each in some for each in order])
    return ",".join(
        f"{order[first]}-{order[last]}" if last > first else str(order[first])
        for first, last in runs
    )


def _runs(flags: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Yield the first and last index of each run of true values."""
    for flag, run in itertools.groupby(enumerate(flags), lambda each: each[1]):
        if flag:
            places = [place for place, _flag in run]
            yield places[0], places[-1]


def _short(address: PciAddress, before: PciAddress | None) -> str:
    """Format an address, without domain and bus if equal to the one before."""
    if before is not None and address.parts[:2] == before.parts[:2]:
        return f"{address.slot:02x}.{address.function:x}"
    return str(address)


def _kind(function: PciFunction) -> str:
    number = function.class_code >> 16
    return _CLASSES.get(number, f"class {number:02x}")


def kinds(functions: Iterable[PciFunction]) -> str:
    """Return the number of functions of each kind."""
    counted = Counter(map(_kind, functions))
    return ", ".join(f"{name}: {counted[name]}" for name in sorted(counted))


def affinity(snapshot: HostSnapshot, node: int | None) -> Iterator[str]:
    """Yield the affinity of a node to the guest, and the policies allowing it."""
    found = snapshot.affinity(node)
    if found is not None:
        policies = allowing(found)
        named = ", ".join(each.value for each in policies)
        every = len(policies) == len(NUMAPolicy)
        yield f"{_AFFINITIES[found]} ({'every policy' if every else named})"


def allowing(found: Affinity) -> tuple[NUMAPolicy, ...]:
    """Return the policies that allow a device with this affinity."""
    return tuple(policy for policy in NUMAPolicy if allows(policy, found))


def holder(leases: Sequence[Lease]) -> Iterator[str]:
    """Yield the current or last holder of devices."""
    consumers = {lease.consumer: lease for lease in leases}
    if len(consumers) > 1:
        yield f"{len(consumers)} instances"
    elif consumers:
        (lease,) = consumers.values()
        name = lease.guest.name
        yield base.plain(f"{name} ({lease.consumer})" if name else lease.consumer)
        if lease.wanted.attach_target in _TARGETS:
            yield _TARGETS[lease.wanted.attach_target]


def function(snapshot: HostSnapshot, address: PciAddress) -> Iterator[str]:
    """Yield all details of one function, the most important first."""
    found = snapshot.functions[address]
    device = snapshot.states.get(address)
    # Other details of a member of an IOMMU group are those of its main function.
    is_member = device is not None and device.main != device.address
    if device is not None and is_member:
        yield base.plain(device.reason)
    elif device is not None:
        yield from _device(snapshot, [device])
    if found.role is PciRole.PF:
        yield f"{_kind(found)}, {len(found.vfs)} of {found.total_vfs} VFs"
    else:
        yield f"{_kind(found)} VF" if found.role is PciRole.VF else _kind(found)
    if name := snapshot.models.known(found.identity):
        yield base.plain(name)
    if not is_member:
        owners = snapshot.host.netdevs.items()
        yield from (base.plain(each) for each, owner in owners if owner == address)
    yield driver(found)
    if not is_member:
        yield _group(snapshot, found)


def alike(snapshot: HostSnapshot, some: Sequence[PciAddress]) -> Iterator[str]:
    """Yield the details of VFs that differ only in their addresses."""
    found = [snapshot.functions[each] for each in some]
    devices = [snapshot.states[each] for each in some if each in snapshot.states]
    if devices:
        yield from _device(snapshot, devices)
    if name := snapshot.models.known(found[0].identity):
        yield base.plain(name)
    yield driver(found[0])
    groups = {each.iommu_group for each in found if each.iommu_group is not None}
    if groups:
        yield f"groups {numbers(groups)}"


def driver(found: PciFunction) -> str:
    """Return the name of the function's driver."""
    return base.plain(found.driver) if found.driver else "no driver"


def cell(found: NUMACell) -> Iterator[str]:
    """Yield the resources of a cell."""
    cpus = found.cpuset | found.pcpuset
    yield f"CPUs {numbers(cpus)}" if cpus else "no CPUs"
    yield _size(found.memory)
    # By ascending size: the first entry is for normal pages.
    for pages in found.mempages[1:]:
        if pages.total:
            size = _size(pages.size_kb // 1024)
            yield f"{pages.free} of {pages.total} pages of {size} free"
    networks = sorted(found.network_info.physnets)
    if networks:
        yield base.plain(f"networks {', '.join(networks)}")
    if found.network_info.tunneled:
        yield "tunnels"
    far: dict[int, list[int]] = {}
    for other, distance in found.distances:
        if other != found.id:
            far.setdefault(distance, []).append(other)
    for distance, others in sorted(far.items()):
        yield f"distance {distance} to {cells(others)}"


def cells(some: Sequence[int]) -> str:
    """Format the numbers of cells."""
    return f"{'cells' if len(some) > 1 else 'cell'} {numbers(some)}"


def _device(snapshot: HostSnapshot, devices: Sequence[DeviceState]) -> Iterator[str]:
    first = devices[0]
    yield from holder([each.lease for each in devices if each.lease])
    if first.reason:
        yield base.plain(first.reason)
    if first.function is not None:
        yield from affinity(snapshot, first.function.numa_node)
    if first.resource_class:
        yield base.plain(first.resource_class)


def _group(snapshot: HostSnapshot, found: PciFunction) -> str:
    if found.iommu_group is None:
        return "no IOMMU group"
    group = snapshot.host.groups.get(found.iommu_group)
    others = [each for each in group.members if each != found.address] if group else []
    named = f"{len(others)} others" if len(others) > _FEW else addresses(others)
    return f"group {found.iommu_group}" + (f" with {named}" if others else "")


def _size(mib: int) -> str:
    if mib < 1024:
        return f"{mib} MiB"
    return f"{mib / 1024:.1f}".removesuffix(".0") + " GiB"
