# SPDX-License-Identifier: Apache-2.0

"""Output of a tree on a terminal, and as SVG 1.1 without scripts and external files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TextIO
from xml.etree import ElementTree

from rich.console import Console, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from os_acc.cmd import base
from os_acc.cmd.device_states import DeviceStatus
from os_acc.cmd.topology_labels import HostSnapshot
from os_acc.cmd.topology_tree import Line, supplies
from os_acc.objects.numa import NUMAPolicy

# Legible on light and on dark backgrounds.
_COLOURS = {
    DeviceStatus.FREE.value: "green",
    DeviceStatus.LEASED.value: "blue",
    DeviceStatus.PREPARING.value: "magenta",
    DeviceStatus.RELEASING.value: "magenta",
    DeviceStatus.ERASING.value: "magenta",
    DeviceStatus.QUARANTINED.value: "red",
    DeviceStatus.UNKNOWN.value: "red",
    DeviceStatus.FAULTY.value: "red",
    DeviceStatus.REFUSED.value: "yellow",
}
# Columns of a level of the tree, and the least columns of text.
_LEVEL, _LEAST = 4, 24
_PICTURE_COLUMNS = 120
# In pixels: the lines of the tree join at this height, and no text is wider.
_COLUMN, _ROW, _EDGE = 7.4, 14, 16
_STYLE = """
text { font: 12px "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1f2933; }
.ground { fill: #fbfbf8; }
.green { fill: #166534; }
.blue { fill: #1d4ed8; }
.magenta { fill: #7e22ce; }
.red { fill: #b91c1c; }
.yellow { fill: #92400e; }
@media (prefers-color-scheme: dark) {
text { fill: #e5e7eb; }
.ground { fill: #14181d; }
.green { fill: #4ade80; }
.blue { fill: #93c5fd; }
.magenta { fill: #d8b4fe; }
.red { fill: #fca5a5; }
.yellow { fill: #fcd34d; }
}
"""


def write_text(
    host: Line, snapshot: HostSnapshot, out: TextIO, width: int, *, colours: bool
) -> None:
    """Write the tree and the table of free accelerators.

    :param width: in columns; a deep tree takes more.
    """
    encoding = getattr(out, "encoding", None) or "utf-8"
    for row in _rows(host, snapshot, width, encoding):
        text = "".join(
            segment.style.render(segment.text)
            if colours and segment.style and segment.style.color
            else segment.text
            for segment in row
        )
        out.write(text.rstrip() + "\n")


def picture(host: Line, snapshot: HostSnapshot) -> str:
    """Return the tree and the table as SVG; equal trees give equal pictures."""
    rows = list(_rows(host, snapshot, _PICTURE_COLUMNS, "utf-8"))
    width = 2 * _EDGE + _COLUMN * max(map(Segment.get_line_length, rows))
    height = 2 * _EDGE + _ROW * len(rows)
    root = ElementTree.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "xml:space": "preserve",
            "width": f"{width:.0f}",
            "height": str(height),
            "viewBox": f"0 0 {width:.0f} {height}",
            "role": "img",
            "aria-labelledby": "title description",
        },
    )
    _add(root, "title", {"id": "title"}, f"Accelerators of {host.label}")
    _add(root, "desc", {"id": "description"}, ", ".join(host.details))
    _add(root, "style", {"type": "text/css"}, _STYLE)
    _add(root, "rect", {"class": "ground", "width": "100%", "height": "100%"})
    for number, row in enumerate(rows, start=1):
        line = _add(root, "text", {"x": str(_EDGE), "y": str(_EDGE + _ROW * number)})
        for segment in row:
            colour = segment.style.color if segment.style else None
            _add(line, "tspan", {"class": colour.name} if colour else {}, segment.text)
    return ElementTree.tostring(root, "unicode").replace("</text>", "</text>\n") + "\n"


def _rows(
    host: Line, snapshot: HostSnapshot, width: int, encoding: str
) -> Iterator[list[Segment]]:
    console = Console(
        file=io.TextIOWrapper(io.BytesIO(), encoding),
        width=max(width, _LEVEL * host.depth + _LEAST),
        force_terminal=True,
        color_system="standard",
        legacy_windows=False,
    )
    shown = Group(_tree(host, encoding), "", *_tables(snapshot))
    yield from console.render_lines(shown, pad=False)


def _tree(line: Line, encoding: str) -> Tree:
    def shown(text: str) -> str:
        # A replaced character may be wider than the original.
        return text.encode(encoding, "replace").decode(encoding)

    state = Text(line.state, _COLOURS.get(line.state, ""))
    parts = (Text(shown(line.label)), state, Text(shown("; ".join(line.details))))
    tree = Tree(Text("  ").join(filter(None, parts)))
    tree.children.extend(_tree(each, encoding) for each in line.below)
    return tree


def _tables(snapshot: HostSnapshot) -> Iterator[RenderableType]:
    if not snapshot.free:
        yield Text("No accelerators are offered.")
        return
    yield Text("Free accelerators that a guest could get, by its cells and its policy")
    for name, nodes in sorted(snapshot.free.items()):
        yield Text(f"\n{base.plain(name)}, free: {len(nodes)}")
        if nodes:
            table = Table(box=None, padding=(0, 0, 0, 2), header_style="")
            for column in ("cells", *(policy.value for policy in NUMAPolicy)):
                table.add_column(column, justify="right")
            for row in supplies(snapshot, nodes):
                table.add_row(*row)
            yield table


def _add(
    parent: ElementTree.Element, tag: str, attributes: dict[str, str], text: str = ""
) -> ElementTree.Element:
    child = ElementTree.SubElement(parent, tag, attributes)
    child.text = text or None
    return child
