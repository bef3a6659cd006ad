# SPDX-License-Identifier: Apache-2.0

"""Arrangement of functions as trees in NUMA cells."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from os_acc.cmd.device_states import DeviceStatus
from os_acc.cmd.drawing import labels
from os_acc.cmd.drawing.snapshot import HostSnapshot
from os_acc.objects.mdev import function_of
from os_acc.objects.pci import PciAddress

# Up to this number, each instance has a line of its own below a card.
_HOLDERS = 8


def alike(
    snapshot: HostSnapshot, vfs: Sequence[PciAddress], apart: Collection[PciAddress]
) -> list[list[PciAddress]]:
    """Group the VFs of one card that differ only in their addresses.

    With many instances, the VFs of all instances are grouped as well.

    :param apart: VFs that each have a line of their own.
    """
    leases = [device.lease for vf in vfs if (device := snapshot.states.get(vf))]
    by_holder = len({lease.consumer for lease in leases if lease}) <= _HOLDERS
    found: dict[object, list[PciAddress]] = {}
    for vf in vfs:
        key = vf if vf in apart else _key(snapshot, vf, by_holder=by_holder)
        found.setdefault(key, []).append(vf)
    return list(found.values())


def _key(snapshot: HostSnapshot, vf: PciAddress, *, by_holder: bool) -> object:
    """Return the properties that VFs on one line have in common."""
    function, device = snapshot.functions[vf], snapshot.states.get(vf)
    common = (labels.driver(function), function.iommu_group is None)
    if device is None:
        return common
    own = (*common, device.state, device.resource_class, device.reason)
    if device.lease is None:
        return own
    # The instances of devices in trouble are always named.
    is_named = by_holder or device.state is not DeviceStatus.LEASED
    consumer = device.lease.consumer if is_named else ""
    return (*own, device.lease.wanted.attach_target, consumer)


_Places = Mapping[PciAddress | None, tuple[PciAddress, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class FunctionTrees:
    """The functions of a host as trees, each in one NUMA node.

    :ivar above: the parent of a function; missing for those at the top.
    :ivar below: the children of a function; sorted.
    :ivar tops: functions without a parent, by node; sorted.
    :ivar others: functions that are not drawn, by node; sorted.
    """

    above: Mapping[PciAddress, PciAddress]
    below: Mapping[PciAddress, tuple[PciAddress, ...]]
    tops: Mapping[int | None, tuple[PciAddress, ...]]
    others: Mapping[int | None, tuple[PciAddress, ...]]

    @property
    def nodes(self) -> frozenset[int | None]:
        """The nodes that have functions."""
        return frozenset({*self.tops, *self.others})


def plant(snapshot: HostSnapshot, everything: bool) -> FunctionTrees:
    """Arrange every function of the host in trees.

    Functions that os_acc may use are drawn, with their parents.

    :param everything: draw all functions.
    """
    drawn: dict[PciAddress, PciAddress | None] = {}
    for address in snapshot.functions if everything else snapshot.states:
        # A mediated device is drawn as a part of its parent.
        place = function_of(address)
        while place and place in snapshot.functions and place not in drawn:
            above = _above(snapshot, place)
            drawn[place] = above
            place = above
    below = defaultdict(list)
    tops = defaultdict(list)
    others = defaultdict(list)
    for address, function in sorted(snapshot.functions.items()):
        above = drawn.get(address)
        if address not in drawn:
            others[function.numa_node].append(address)
        elif above is None:
            tops[function.numa_node].append(address)
        else:
            below[above].append(address)
    return FunctionTrees(
        MappingProxyType({one: other for one, other in drawn.items() if other}),
        MappingProxyType({key: tuple(value) for key, value in below.items()}),
        MappingProxyType({key: tuple(value) for key, value in tops.items()}),
        MappingProxyType({key: tuple(value) for key, value in others.items()}),
    )


def _above(snapshot: HostSnapshot, address: PciAddress) -> PciAddress | None:
    """Return the PF, or the next bridge, of the same node.

    The kernel gives a function the node of its bus, but firmware, quirks and
    writes to ``numa_node`` may override this.
    """
    function = snapshot.functions[address]
    above = function.physfn or snapshot.parents.get(address)
    while above is not None:
        other = snapshot.functions.get(above)
        if other is not None and other.numa_node == function.numa_node:
            return above
        above = snapshot.parents.get(above)
    return None
