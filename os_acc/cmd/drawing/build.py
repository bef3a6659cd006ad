# SPDX-License-Identifier: Apache-2.0

"""Build the lines of a drawing from a snapshot."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

from os_acc.cmd.device_states import DeviceState, DeviceStatus
from os_acc.cmd.drawing import forest, labels
from os_acc.cmd.drawing.labels import plain
from os_acc.cmd.drawing.model import POLICIES, Choice, Drawing, Line, Mark, Supply
from os_acc.cmd.drawing.snapshot import HostSnapshot
from os_acc.numa.affinity import GuestCells, allows
from os_acc.objects.numa import NUMACell
from os_acc.objects.pci import PciAddress


def supplies(snapshot: HostSnapshot) -> tuple[Supply, ...]:
    """Return the supplies for a guest in each cell, or for the given guest."""
    names = sorted({each.resource_class for each in snapshot.accelerators})
    return tuple(_supply(snapshot, name) for name in names)


def _supply(snapshot: HostSnapshot, name: str) -> Supply:
    nodes = [
        each.numa_node
        for each in snapshot.accelerators
        if each.resource_class == name and each.is_free
    ]
    return Supply(plain(name), len(nodes), tuple(_choices(snapshot, nodes)))


def _choices(snapshot: HostSnapshot, nodes: Sequence[int | None]) -> Iterator[Choice]:
    if not nodes:
        return
    if snapshot.guest is not None:
        cells = "+".join(map(str, snapshot.guest.cells))
        yield Choice(cells, _free(snapshot.guest, nodes))
        return
    if not snapshot.topology.cells:
        yield Choice("any", _free(GuestCells(snapshot.topology), nodes))
        return
    rows = [
        (_free(GuestCells(snapshot.topology, (cell.id,)), nodes), cell.id)
        for cell in snapshot.topology.cells
    ]
    for free, alike in itertools.groupby(rows, lambda row: row[0]):
        yield Choice(labels.numbers(number for _free, number in alike), free)


def _free(guest: GuestCells, nodes: Sequence[int | None]) -> tuple[int, ...]:
    return tuple(
        sum(allows(policy, guest.affinity(node)) for node in nodes)
        for policy in POLICIES
    )


def draw(snapshot: HostSnapshot, *, long: bool = False) -> Drawing:
    """Draw the host as a tree.

    :param long: draw each function as a separate line, including functions
        that os_acc does not use.
    """
    return Drawing(_Artist(snapshot, long).host(), supplies(snapshot))


class _Artist:
    def __init__(self, snapshot: HostSnapshot, long: bool) -> None:
        self._snapshot = snapshot
        self._long = long
        self._forest = forest.plant(snapshot, everything=long)

    def host(self) -> Line:
        topology = self._snapshot.topology
        below: tuple[Line, ...]
        if topology.cells:
            below = (*self._sockets(), *self._unlisted(), *self._elsewhere())
        else:
            below = tuple(self._node(*self._forest.nodes))
        return Line(
            f"host {labels.plain(self._snapshot.name)}",
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
                yield Line(f"socket {socket}", framed=True, below=lines)

    def _cell(self, cell: NUMACell) -> Line:
        return Line(
            f"cell {cell.id}",
            (*labels.affinity(self._snapshot, cell.id), *labels.cell(cell)),
            framed=True,
            below=tuple(self._node(cell.id)),
        )

    def _unlisted(self) -> Iterator[Line]:
        """Yield nodes of functions that are not in the topology: offline or gone."""
        known = {cell.id for cell in self._snapshot.topology.cells}
        for node in sorted(each for each in self._forest.nodes if each is not None):
            if node not in known:
                yield Line(
                    f"cell {node}",
                    ("offline",),
                    framed=True,
                    below=tuple(self._node(node)),
                )

    def _elsewhere(self) -> Iterator[Line]:
        if None in self._forest.nodes:
            yield Line(
                "no NUMA node",
                tuple(labels.affinity(self._snapshot, None)),
                framed=True,
                below=tuple(self._node(None)),
            )

    def _node(self, *nodes: int | None) -> Iterator[Line]:
        """Yield all lines of one node, or of several."""
        planted, functions = self._forest, self._snapshot.functions
        tops = [each for node in nodes for each in planted.tops.get(node, ())]
        others = [each for node in nodes for each in planted.others.get(node, ())]
        yield from self._lines(sorted(tops))
        if others:
            yield Line(
                f"other functions: {len(others)}",
                (
                    labels.kinds(functions[each] for each in others),
                    labels.addresses(others, tuple(functions)),
                ),
                mark=Mark.HOST,
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
        function = self._snapshot.functions[address]
        device = self._snapshot.states.get(address)
        here = self._forest.below.get(address, ())
        vfs = [each for each in function.vfs if each in here]
        beside = [each for each in here if each not in set(vfs)]
        line = Line(
            str(address),
            tuple(labels.function(self._snapshot, address)) + self._strange(address),
            state=self._state(device, address),
            mark=self._mark(device, address),
            functions=(address,),
            below=(*self._vfs(address, vfs), *self._lines(beside)),
        )
        return line if self._long or device else self._without_detours(line)

    def _without_detours(self, line: Line) -> Line:
        """Merge a chain of bridges that have a single child into one line."""
        if line.mark is not Mark.PLACE or len(line.below) != 1:
            return line
        (only,) = line.below
        if only.mark is not Mark.PLACE or not only.functions:
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
        if above is None or above == self._forest.above.get(address):
            return ()
        return (f"VF of {above}" if function.physfn else f"behind {above}",)

    def _state(self, device: DeviceState | None, address: PciAddress) -> str:
        if device is not None:
            return device.state.value
        return "" if self._snapshot.functions[address].is_bridge else "host"

    def _mark(self, device: DeviceState | None, address: PciAddress) -> Mark:
        if device is not None:
            return labels.MARKS[device.state]
        is_bridge = self._snapshot.functions[address].is_bridge
        return Mark.PLACE if is_bridge else Mark.HOST

    def _vfs(self, pf: PciAddress, vfs: Sequence[PciAddress]) -> Iterator[Line]:
        groups = [[each] for each in vfs] if self._long else self._alike(vfs)
        for some in groups:
            if len(some) == 1:
                yield self._function(some[0])
                continue
            device = self._snapshot.states.get(some[0])
            places = labels.addresses(some, self._vfs_of(pf))
            yield Line(
                f"{len(some)} VFs {places}",
                (*labels.alike(self._snapshot, some), *self._strange(some[0])),
                state=self._state(device, some[0]),
                mark=self._mark(device, some[0]),
                functions=tuple(some),
            )

    def _vfs_of(self, pf: PciAddress) -> Sequence[PciAddress]:
        """Return the VFs of a PF by the links of both sides; one may be unreadable."""
        functions = self._snapshot.functions
        named = functions[pf].vfs if pf in functions else ()
        naming = (at for at, each in functions.items() if each.physfn == pf)
        return sorted({*named, *naming})

    def _alike(self, vfs: Sequence[PciAddress]) -> list[list[PciAddress]]:
        # A VF with lines below it keeps its own line.
        return forest.alike(self._snapshot, vfs, apart=self._forest.below)

    def _missing(self) -> Iterator[Line]:
        """Yield leased or named functions that cannot be read."""
        host = self._snapshot.host
        lines = [
            Line(
                str(device.address),
                (
                    *labels.holder([device.lease] if device.lease else []),
                    labels.plain(device.reason),
                ),
                state=device.state.value,
                mark=labels.MARKS[device.state],
            )
            for device in self._snapshot.states.values()
            if device.function is None
        ]
        labelled = {line.label for line in lines}
        lines += [
            Line(labels.plain(name), (labels.plain(str(error)),), mark=Mark.TROUBLE)
            for name, error in sorted(host.unreadable.items())
            if labels.plain(name) not in labelled
        ]
        if lines:
            yield Line("not to be seen", framed=True, below=tuple(lines))


def _none_last(number: int | None) -> tuple[bool, int]:
    return number is None, number or 0
