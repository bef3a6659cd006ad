# SPDX-License-Identifier: Apache-2.0

"""The tree of a host, independent of its output format."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from os_acc.cmd import base
from os_acc.cmd import topology_labels as labels
from os_acc.cmd.device_states import DeviceStatus
from os_acc.cmd.topology_labels import HostSnapshot
from os_acc.numa.policies import GuestCells, allows
from os_acc.objects.mdev import function_of
from os_acc.objects.numa import NUMACell, NUMAPolicy
from os_acc.objects.pci import PciAddress

# Up to this number, each instance has a line of its own below a card.
_HOLDERS = 8


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One line, and the lines below it.

    :ivar state: a state of ``os-acc device list``, or ``host``; empty for places.
    :ivar functions: the functions of the line, without those below.
    """

    label: str
    details: tuple[str, ...] = ()
    state: str = ""
    functions: tuple[PciAddress, ...] = ()
    below: tuple[Line, ...] = ()

    @property
    def depth(self) -> int:
        """The maximum number of nested lines."""
        return 1 + max((line.depth for line in self.below), default=0)


def supplies(
    snapshot: HostSnapshot, nodes: Sequence[int | None]
) -> Iterator[tuple[str, ...]]:
    """Yield the free accelerators for a guest in each cell, or for the given guest.

    A row has cells with equal numbers (those of one guest as ``0+1``), and the free
    accelerators for a guest in them by each of ``NUMAPolicy``.

    :param nodes: those of the free accelerators of one resource class.
    """
    topology, guest = snapshot.topology, snapshot.guest
    if guest is not None:
        yield ("+".join(map(str, guest.cells)), *_free(guest, nodes))
    elif not topology.cells:
        yield ("any", *_free(GuestCells(topology), nodes))
    else:
        found = [
            (_free(GuestCells(topology, (cell.id,)), nodes), cell.id)
            for cell in topology.cells
        ]
        for free, alike in itertools.groupby(found, lambda row: row[0]):
            yield (labels.numbers([number for _free, number in alike]), *free)


def _free(guest: GuestCells, nodes: Sequence[int | None]) -> tuple[str, ...]:
    return tuple(
        str(sum(allows(policy, guest.affinity(node)) for node in nodes))
        for policy in NUMAPolicy
    )


def parent(snapshot: HostSnapshot, address: PciAddress) -> PciAddress | None:
    """Return the PF, or the next bridge, of the same node; None at the top of a tree.

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


def draw(snapshot: HostSnapshot, *, long: bool = False) -> Line:
    """Draw the host as a tree.

    :param long: draw each function as a separate line, including functions
        that os_acc does not use.
    """
    return _Artist(snapshot, long).host()


class _Artist:
    """Arrange the functions as trees, each in one NUMA node, and draw these.

    Without ``long``, only functions that os_acc may use are in a tree, and their
    parents.
    """

    def __init__(self, snapshot: HostSnapshot, long: bool) -> None:
        self._snapshot = snapshot
        self._long = long
        drawn: dict[PciAddress, PciAddress | None] = {}
        for address in snapshot.functions if long else snapshot.states:
            # A mediated device is drawn as a part of its parent.
            place = function_of(address)
            while place and place in snapshot.functions and place not in drawn:
                drawn[place] = above = parent(snapshot, place)
                place = above
        self._above = {one: other for one, other in drawn.items() if other}
        self._below: defaultdict[PciAddress, list[PciAddress]] = defaultdict(list)
        #: Functions without a parent, and those that are not drawn, by node.
        self._tops: defaultdict[int | None, list[PciAddress]] = defaultdict(list)
        self._others: defaultdict[int | None, list[PciAddress]] = defaultdict(list)
        for address, function in sorted(snapshot.functions.items()):
            if address not in drawn:
                self._others[function.numa_node].append(address)
            elif address in self._above:
                self._below[self._above[address]].append(address)
            else:
                self._tops[function.numa_node].append(address)

    def host(self) -> Line:
        nodes = {*self._tops, *self._others}
        if self._snapshot.topology.cells:
            below = (*self._sockets(), *self._unlisted(nodes))
        else:
            below = tuple(self._node(*nodes))
        return Line(
            f"host {base.plain(self._snapshot.name)}",
            tuple(self._summary()),
            below=(*below, *self._missing()),
        )

    def _summary(self) -> Iterator[str]:
        if not self._snapshot.topology.cells:
            yield "NUMA cells unknown"
        if self._snapshot.guest:
            yield f"for a guest in {labels.cells(self._snapshot.guest.cells)}"
        counted = Counter(each.state for each in self._snapshot.states.values())
        yield f"functions: {len(self._snapshot.functions)}"
        for state in DeviceStatus:
            if counted[state]:
                yield f"{state.value}: {counted[state]}"

    def _sockets(self) -> Iterator[Line]:
        cells = self._snapshot.topology.cells
        for socket in sorted({each.socket for each in cells}, key=_none_last):
            lines = tuple(self._cell(each) for each in cells if each.socket == socket)
            if socket is None:
                yield from lines
            else:
                yield Line(f"socket {socket}", below=lines)

    def _cell(self, cell: NUMACell) -> Line:
        return Line(
            f"cell {cell.id}",
            (*labels.affinity(self._snapshot, cell.id), *labels.cell(cell)),
            below=tuple(self._node(cell.id)),
        )

    def _unlisted(self, nodes: set[int | None]) -> Iterator[Line]:
        """Yield nodes that are offline or gone, and the devices without a node."""
        listed = {cell.id for cell in self._snapshot.topology.cells}
        for node in sorted(nodes - listed, key=_none_last):
            label, details = f"cell {node}", ["offline"]
            if node is None:
                label = "no NUMA node"
                details = list(labels.affinity(self._snapshot, None))
            yield Line(label, tuple(details), below=tuple(self._node(node)))

    def _node(self, *nodes: int | None) -> Iterator[Line]:
        """Yield all lines of one node, or of several."""
        functions = self._snapshot.functions
        tops = [each for node in nodes for each in self._tops.get(node, ())]
        others = [each for node in nodes for each in self._others.get(node, ())]
        yield from self._lines(sorted(tops))
        if others:
            yield Line(
                f"other functions: {len(others)}",
                (
                    labels.kinds(functions[each] for each in others),
                    labels.addresses(others, tuple(functions)),
                ),
                functions=tuple(others),
            )

    def _lines(self, some: Sequence[PciAddress]) -> Iterator[Line]:
        """Yield adjacent functions; those of one slot as one card.

        VFs whose PF is drawn elsewhere are drawn as if below it.
        """
        places: dict[PciAddress | tuple[int, ...], list[PciAddress]] = {}
        for address in some:
            pf = self._snapshot.functions[address].physfn
            places.setdefault(pf or address.parts[:3], []).append(address)
        for place, found in places.items():
            if isinstance(place, PciAddress):
                yield from self._vfs(place, found)
                continue
            lines = tuple(self._function(address) for address in found)
            if len(lines) == 1:
                yield from lines
            else:
                yield Line(f"card {str(found[0]).partition('.')[0]}", below=lines)

    def _function(self, address: PciAddress) -> Line:
        here = self._below.get(address, [])
        vfs = [each for each in self._snapshot.functions[address].vfs if each in here]
        beside = [each for each in here if each not in vfs]
        line = Line(
            str(address),
            (*labels.function(self._snapshot, address), *self._strange(address)),
            self._state(address),
            functions=(address,),
            below=(*self._vfs(address, vfs), *self._lines(beside)),
        )
        return line if self._long else self._without_detours(line)

    def _without_detours(self, line: Line) -> Line:
        """Merge a chain of bridges with a single child each into one line."""
        if line.state or len(line.below) != 1:
            return line
        (only,) = line.below
        if only.state or not only.functions:
            return line
        return dataclasses.replace(
            only,
            label=f"{line.label} > {only.label}",
            details=("bridges", *self._strange(line.functions[0])),
            functions=(*line.functions, *only.functions),
        )

    def _strange(self, address: PciAddress) -> tuple[str, ...]:
        """Describe the parent of a function, if it is drawn elsewhere."""
        function = self._snapshot.functions[address]
        above = function.physfn or self._snapshot.parents.get(address)
        if above is None or above == self._above.get(address):
            return ()
        return (f"VF of {above}" if function.physfn else f"behind {above}",)

    def _state(self, address: PciAddress) -> str:
        if device := self._snapshot.states.get(address):
            return device.state.value
        return "" if self._snapshot.functions[address].is_bridge else "host"

    def _vfs(self, pf: PciAddress, vfs: Sequence[PciAddress]) -> Iterator[Line]:
        for some in [[each] for each in vfs] if self._long else self._alike(vfs):
            if len(some) == 1:
                yield self._function(some[0])
                continue
            places = labels.addresses(some, self._vfs_of(pf))
            yield Line(
                f"{len(some)} VFs {places}",
                (*labels.alike(self._snapshot, some), *self._strange(some[0])),
                self._state(some[0]),
                functions=tuple(some),
            )

    def _vfs_of(self, pf: PciAddress) -> Sequence[PciAddress]:
        """Return the VFs of a PF by the links of both sides; one may be unreadable."""
        functions = self._snapshot.functions
        named = functions[pf].vfs if pf in functions else ()
        naming = (at for at, each in functions.items() if each.physfn == pf)
        return sorted({*named, *naming})

    def _alike(self, vfs: Sequence[PciAddress]) -> list[list[PciAddress]]:
        """Group the VFs of one card that differ only in their addresses.

        With many instances, the VFs of all instances are grouped as well.
        """
        states = [self._snapshot.states.get(vf) for vf in vfs]
        leases = [device.lease for device in states if device and device.lease]
        by_holder = len({lease.consumer for lease in leases}) <= _HOLDERS
        found: dict[object, list[PciAddress]] = {}
        for vf in vfs:
            # A VF with lines below it keeps its own line.
            is_apart = vf in self._below
            key = vf if is_apart else self._key(vf, by_holder=by_holder)
            found.setdefault(key, []).append(vf)
        return list(found.values())

    def _key(self, vf: PciAddress, *, by_holder: bool) -> object:
        """Return the properties that VFs on one line have in common."""
        function, device = self._snapshot.functions[vf], self._snapshot.states.get(vf)
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

    def _missing(self) -> Iterator[Line]:
        """Yield leased or named functions that cannot be read."""
        lines = {
            str(device.address): Line(
                str(device.address),
                (
                    *labels.holder([device.lease] if device.lease else []),
                    base.plain(device.reason),
                ),
                device.state.value,
            )
            for device in self._snapshot.states.values()
            if device.function is None
        }
        for name, error in sorted(self._snapshot.host.unreadable.items()):
            label = base.plain(name)
            lines.setdefault(label, Line(label, (base.plain(str(error)),)))
        if lines:
            yield Line("not to be seen", below=tuple(lines.values()))


def _none_last(number: int | None) -> tuple[bool, int]:
    return number is None, number or 0
