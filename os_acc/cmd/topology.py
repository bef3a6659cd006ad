# SPDX-License-Identifier: Apache-2.0

"""``os-acc topology``: the host as a tree."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import EntryPoint
from typing import Any, TextIO

from cliff.formatters import base as formatters
from stevedore import ExtensionManager, extension

from os_acc import exception
from os_acc.cmd import arguments, base, topology_labels, topology_tree
from os_acc.cmd.device_states import DeviceStatus, device_states
from os_acc.cmd.topology_labels import HostSnapshot
from os_acc.host import numa, pci
from os_acc.numa import network_options
from os_acc.numa.policies import GuestCells
from os_acc.objects.mdev import function_of
from os_acc.objects.pci import PciFunction

_TREE = "tree"
_WIDTH = 80


class Topology(base.Listing):
    """Draw the sockets, NUMA cells, bridges, cards and VFs of this host as a tree.

    Shows the instance of each device, and each cell's free devices by NUMA policy.
    Changes nothing, and needs no privileged helper.
    """

    @property
    def formatter_default(self) -> str:
        return _TREE

    def _load_formatter_plugins(
        self,
    ) -> ExtensionManager[formatters.ListFormatter]:
        found = super()._load_formatter_plugins()
        entry = EntryPoint(_TREE, f"{__name__}:_Tree", self.formatter_namespace)
        tree = _Tree(self._draw)
        found.extensions.append(extension.Extension(_TREE, entry, _Tree, tree))
        return found

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "--long",
            action="store_true",
            help="show a line for each function, including those outside device_spec",
        )
        parser.add_argument(
            "--cells",
            **arguments.CELLS,
            default=(),
            help="for a guest in these host cells, such as 0,1: how near each device "
            "is to it, and by which policies it could have it",
        )
        parser.add_argument(
            "--svg",
            metavar="FILE",
            type=arguments.new_file,
            help="draw it into this file, as a picture",
        )

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        if parsed_args.svg and parsed_args.formatter != _TREE:
            self._parser.error("--svg is a format of its own")
        self._snapshot = self._look(parsed_args.cells)
        self.remark_if_none_named()
        return rows(self._snapshot)

    def _draw(self, stdout: TextIO, parsed_args: argparse.Namespace) -> None:
        # Slow to import.
        from os_acc.cmd import topology_render as render

        host = topology_tree.draw(self._snapshot, long=parsed_args.long)
        if parsed_args.svg:
            arguments.write(parsed_args.svg, render.picture(host, self._snapshot))
            return
        width, is_terminal = parsed_args.max_width, stdout.isatty()
        if width < 1:
            width = shutil.get_terminal_size().columns if is_terminal else _WIDTH
        colours = is_terminal and "NO_COLOR" not in os.environ
        render.write_text(host, self._snapshot, stdout, width, colours=colours)

    def _look(self, cells: tuple[int, ...]) -> HostSnapshot:
        look, root = self.look(), self.os_acc.root
        topology = numa.read_topology(root)
        try:
            affinity = network_options.NetworkAffinity.load(self.os_acc.config)
            topology = affinity.on(topology)
        except exception.InvalidConfiguration as error:
            # The rest can still be drawn.
            self.remark(error.message)
        for cell in cells:
            if topology.cell(cell) is None:
                known = ", ".join(str(each.id) for each in topology.cells)
                raise exception.InvalidInput(
                    f"this host has no cell {cell}",
                    hint=f"its cells: {known}"
                    if known
                    else "the cells of this host are unknown",
                )
        states = {each.address: each for each in device_states(look)}
        free: dict[str, list[int | None]] = {}
        for provider in look.inventory.providers.values():
            nodes = free.setdefault(provider.device.resource_class, [])
            for handle in provider.device.handles:
                if states[handle.address].state is DeviceStatus.FREE:
                    nodes.append(handle.numa_node)
        return HostSnapshot(
            name=self.settings.node_name,
            host=look.inventory.host,
            states=states,
            parents=pci.read_parents(root, look.inventory.host.functions),
            topology=topology,
            free=free,
            guest=GuestCells(topology, cells) if cells else None,
            models=self.models(look),
        )


class _Tree(formatters.ListFormatter):
    """The format of the tree, which has more than the rows."""

    def __init__(self, draw: Callable[[TextIO, argparse.Namespace], None]) -> None:
        self._draw = draw

    def add_argument_group(self, parser: argparse.ArgumentParser) -> None:
        pass

    def emit_list(
        self,
        column_names: Sequence[str],
        data: Iterable[Sequence[Any]],
        stdout: TextIO,
        parsed_args: argparse.Namespace,
    ) -> None:
        self._draw(stdout, parsed_args)


# -- rows for programs -------------------------------------------------------

_COLUMNS = (
    "Kind",
    "Name",
    "Below",
    "NUMA Node",
    "Resource Class",
    "State",
    "Consumer",
    "Instance Name",
    "Model",
    "Driver",
    "IOMMU Group",
    "Reason",
)


def rows(snapshot: HostSnapshot) -> base.Table:
    """Return the tree of ``--long`` as rows, with more columns for a given guest."""
    columns = (*_COLUMNS, *(("Affinity", "Policies") if snapshot.guest else ()))
    return columns, [tuple(map(row.get, columns)) for row in _rows(snapshot)]


def _rows(snapshot: HostSnapshot) -> Iterator[dict[str, Any]]:
    cells = snapshot.topology.cells
    for socket in sorted({cell.socket for cell in cells if cell.socket is not None}):
        yield {"Kind": "socket", "Name": f"socket {socket}"}
    for cell in cells:
        yield {
            "Kind": "cell",
            "Name": f"cell {cell.id}",
            "Below": None if cell.socket is None else f"socket {cell.socket}",
            "NUMA Node": cell.id,
            **_affinity(snapshot, cell.id),
        }
    states = filter(None, map(function_of, snapshot.states))
    for address in sorted({*snapshot.functions, *states}):
        row: dict[str, Any] = {"Kind": "gone", "Name": str(address)}
        if function := snapshot.functions.get(address):
            row |= _function(snapshot, function)
        if device := snapshot.states.get(address):
            lease = device.lease
            row |= {
                "Resource Class": device.resource_class,
                "State": device.state.value,
                "Consumer": lease.consumer if lease else None,
                "Instance Name": (lease.guest.name or None) if lease else None,
                "Reason": device.reason or None,
            }
        yield row


def _function(snapshot: HostSnapshot, function: PciFunction) -> dict[str, Any]:
    node = function.numa_node
    known = {cell.id for cell in snapshot.topology.cells}
    above = topology_tree.parent(snapshot, function.address)
    below = f"cell {node}" if node in known else None
    return {
        "Kind": "bridge" if function.is_bridge else function.role.value,
        "Below": str(above) if above else below,
        "NUMA Node": node,
        "Model": snapshot.models.short(function.identity),
        "Driver": function.driver,
        "IOMMU Group": function.iommu_group,
        **_affinity(snapshot, node),
    }


def _affinity(snapshot: HostSnapshot, node: int | None) -> dict[str, Any]:
    found = snapshot.affinity(node)
    if found is None:
        return {}
    policies = [policy.value for policy in topology_labels.allowing(found)]
    return {"Affinity": found.name.lower(), "Policies": policies}
