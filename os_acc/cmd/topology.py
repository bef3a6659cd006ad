# SPDX-License-Identifier: Apache-2.0

"""``os-acc topology``: the host as a tree."""

from __future__ import annotations

import argparse
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import EntryPoint
from typing import Any, TextIO

from cliff.formatters import base as formatters
from stevedore import ExtensionManager, extension

from os_acc import exception
from os_acc.cmd import arguments, base
from os_acc.cmd.drawing import rows, snapshot, tree
from os_acc.host import numa, pci
from os_acc.numa import network_options
from os_acc.objects.numa import NUMATopology

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

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        self._parser = parser = super().get_parser(prog_name)
        parser.add_argument(
            "--long",
            action="store_true",
            help="show a line for each function, including those outside device_spec",
        )
        parser.add_argument(
            "--cells",
            metavar="NUMBERS",
            type=arguments.cells,
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
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> base.Table:
        if parsed_args.svg and parsed_args.formatter != _TREE:
            self._parser.error("--svg is a format of its own")
        self._snapshot = self._look(parsed_args.cells)
        self.remark_if_none_named()
        more = rows.MORE if parsed_args.cells else ()
        return (*rows.COLUMNS, *more), rows.rows(self._snapshot)

    def _draw(self, parsed_args: argparse.Namespace) -> None:
        # Slow to import.
        from os_acc.cmd.drawing import render

        host = tree.draw(self._snapshot, long=parsed_args.long)
        supplies = tree.supplies(self._snapshot)
        if parsed_args.svg:
            _write(parsed_args.svg, render.picture(host, supplies))
            return
        out, width = self.app.stdout, parsed_args.max_width
        is_terminal = out.isatty()
        if width < 1:
            width = shutil.get_terminal_size().columns if is_terminal else _WIDTH
        colours = is_terminal and "NO_COLOR" not in os.environ
        render.write_text(host, supplies, out, width, colours=colours)

    def _look(self, cells: tuple[int, ...]) -> snapshot.HostSnapshot:
        look, root = self.look(), self.os_acc.root
        topology = self._with_networks(numa.read_topology(root))
        for cell in cells:
            if topology.cell(cell) is None:
                known = ", ".join(str(each.id) for each in topology.cells)
                raise exception.InvalidInput(
                    f"this host has no cell {cell}",
                    hint=f"its cells: {known}"
                    if known
                    else "the cells of this host are unknown",
                )
        parents = pci.read_parents(root, look.inventory.host.functions)
        name, models = self.settings.node_name, self.models(look)
        return snapshot.of(look, name, parents, topology, cells, models)

    def _with_networks(self, topology: NUMATopology) -> NUMATopology:
        try:
            affinity = network_options.NetworkAffinity.load(self.os_acc.config)
            return affinity.on(topology)
        except exception.InvalidConfiguration as error:
            # The rest can still be drawn.
            self.remark(error.message)
            return topology


class _Tree(formatters.ListFormatter):
    """The format of the tree, which has more than the rows."""

    def __init__(self, draw: Callable[[argparse.Namespace], None]) -> None:
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
        self._draw(parsed_args)


def _write(file: TextIO, picture: str) -> None:
    try:
        with file:
            # The old contents are kept until there are new ones.
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                file.truncate()
            file.write(picture)
    except OSError as error:
        raise exception.InvalidInput(
            f"cannot write {file.name}: {error.strerror}"
        ) from error
