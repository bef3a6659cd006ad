# SPDX-License-Identifier: Apache-2.0

"""Output of a drawing as SVG 1.1, without scripts and external files."""

from __future__ import annotations

import dataclasses
import math
from xml.etree import ElementTree

from os_acc.cmd.drawing import text_table
from os_acc.cmd.drawing.model import POLICIES, Drawing, Line, Mark

# In pixels. A column is a little wider than those of the fonts below, so that
# text never exceeds its frame.
_COLUMN, _ROW, _STEP, _EDGE, _PADDING = 7.4, 18, 22, 16, 6
_COLUMNS = 120
_LEAST_COLUMNS = 48
_TABLE_COLUMN = 88

_STYLE = """
text { font: 12px "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1f2933; }
.ground { fill: #fbfbf8; }
.frame { fill: none; stroke: #9aa5b1; }
.branch { fill: none; stroke: #9aa5b1; }
.label, .heading { font-weight: bold; }
.host { fill: #4b5563; }
.free { fill: #166534; }
.leased { fill: #1d4ed8; }
.under-way { fill: #7e22ce; }
.trouble { fill: #b91c1c; }
.refused { fill: #92400e; }
@media (prefers-color-scheme: dark) {
text { fill: #e5e7eb; }
.ground { fill: #14181d; }
.host { fill: #9ca3af; }
.free { fill: #4ade80; }
.leased { fill: #93c5fd; }
.under-way { fill: #d8b4fe; }
.trouble { fill: #fca5a5; }
.refused { fill: #fcd34d; }
}
"""


def render(drawing: Drawing) -> str:
    """Return the picture; equal drawings give equal pictures."""
    canvas = _Canvas()
    canvas.line(drawing.host, 0)
    canvas.table(drawing)
    return canvas.text(drawing)


@dataclasses.dataclass(slots=True)
class _Size:
    """The used area."""

    width: float = 0.0
    height: int = _EDGE


class _Canvas:
    def __init__(self) -> None:
        self._size = _Size()
        self._frames = ElementTree.Element("g")
        self._lines = ElementTree.Element("g")
        self._texts = ElementTree.Element("g")

    def line(self, line: Line, depth: int) -> int:
        """Draw a line and all below it; return the height at which it begins."""
        left = _EDGE + depth * _STEP
        if line.framed:
            self._size.height += _PADDING
        top = self._size.height
        self._rows(line, left, max(_COLUMNS - 3 * depth, _LEAST_COLUMNS))
        branches = [(self.line(child, depth + 1), child.framed) for child in line.below]
        trunk = left + (_STEP // 2 if line.framed else 4)
        for begin, framed in branches:
            if not framed:
                middle = begin + _ROW // 2
                path = f"M {trunk} {top + _ROW} V {middle} H {left + _STEP - 7}"
                _add(self._lines, "path", {"class": "branch", "d": path})
        if line.framed:
            self._size.height += _PADDING // 2
            self._frame(left, top)
            self._size.height += _PADDING // 2
        return top

    def table(self, drawing: Drawing) -> None:
        """Draw the table of available accelerators."""
        self._size.height += _ROW
        for row in text_table.table(drawing):
            if len(row) > 1:
                for number, text in enumerate(row):
                    right = _EDGE + (number + 1) * _TABLE_COLUMN
                    place = {"text-anchor": "end"}
                    self._text(text, right, self._size.height, place)
                self._widen(_EDGE + (len(POLICIES) + 1) * _TABLE_COLUMN)
                self._size.height += _ROW
                continue
            for text in text_table.fold("".join(row), _COLUMNS):
                self._text(text, _EDGE, self._size.height, {"class": "heading"})
                self._widen(_EDGE + text_table.width(text) * _COLUMN)
                self._size.height += _ROW

    def text(self, drawing: Drawing) -> str:
        """Return the SVG document."""
        width = math.ceil(self._size.width) + 2 * _EDGE
        height = self._size.height + _EDGE
        for frame in self._frames:
            # Nested frames end before the outer ones.
            left = int(frame.get("x", "0"))
            frame.set("width", str(width - left - left // 3))
        root = ElementTree.Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg",
                "width": str(width),
                "height": str(height),
                "viewBox": f"0 0 {width} {height}",
                "role": "img",
                "aria-labelledby": "title description",
            },
        )
        host = drawing.host
        _add(root, "title", {"id": "title"}, f"Accelerators of {host.label}")
        _add(root, "desc", {"id": "description"}, ", ".join(host.details))
        _add(root, "style", {"type": "text/css"}, _STYLE)
        whole = {"class": "ground", "width": "100%", "height": "100%"}
        _add(root, "rect", whole)
        root.extend((self._frames, self._lines, self._texts))
        ElementTree.indent(root, " ")
        return ElementTree.tostring(root, "unicode") + "\n"

    def _rows(self, line: Line, left: int, columns: int) -> None:
        if line.mark is not Mark.PLACE:
            middle = self._size.height + _ROW // 2
            place = {"cx": str(left), "cy": str(middle), "r": "4"}
            _add(self._texts, "circle", {"class": line.mark.value, **place})
        indent = 10 if line.framed or line.mark is not Mark.PLACE else 0
        first, *others = text_table.fold(text_table.text_of(line), columns)
        self._first(line, first, left + indent)
        for other in others:
            self._size.height += _ROW
            self._text(other, left + indent + 2 * _COLUMN, self._size.height)
            self._widen(left + indent + (2 + text_table.width(other)) * _COLUMN)
        self._size.height += _ROW

    def _first(self, line: Line, first: str, left: float) -> None:
        """Draw the label, the state and the rest, each at its own column."""
        place = text_table.state_at(line, first)
        cut = place[1] if place else len(line.label)
        parts = [(0, min(len(line.label), len(first)), "label")]
        if place:
            parts.append((*place, line.mark.value))
        parts.append((cut, len(first), ""))
        for start, end, name in parts:
            text = first[start:end]
            column = text_table.width(first[:start]) + len(text) - len(text.lstrip())
            if text.strip():
                attributes = {"class": name} if name else {}
                at = left + column * _COLUMN
                self._text(text.strip(), at, self._size.height, attributes)
        self._widen(left + text_table.width(first) * _COLUMN)

    def _text(
        self, text: str, x: float, y: int, more: dict[str, str] | None = None
    ) -> None:
        place = {"x": f"{x:.5g}", "y": str(y + _ROW - 5)}
        _add(self._texts, "text", {**place, **(more or {})}, text)

    def _frame(self, left: int, top: int) -> None:
        place = {"x": str(left), "y": str(top), "rx": "5"}
        size = {"height": str(self._size.height - top)}
        _add(self._frames, "rect", {"class": "frame", **place, **size})

    def _widen(self, right: float) -> None:
        self._size.width = max(self._size.width, right)


def _add(
    parent: ElementTree.Element, tag: str, attributes: dict[str, str], text: str = ""
) -> None:
    child = ElementTree.SubElement(parent, tag, attributes)
    child.text = text or None
