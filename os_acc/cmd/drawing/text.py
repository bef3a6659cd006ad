# SPDX-License-Identifier: Apache-2.0

"""Output of a drawing on a terminal."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from os_acc.cmd.drawing import text_table
from os_acc.cmd.drawing.model import Drawing, Line, Mark

#: The minimum usable width.
LEAST_WIDTH = 40

# Select Graphic Rendition (ECMA-48, 8.3.117): colours that are legible on light
# and dark backgrounds.
_COLOURS = {
    Mark.FREE: "32",
    Mark.LEASED: "34",
    Mark.UNDER_WAY: "35",
    Mark.TROUBLE: "31",
    Mark.REFUSED: "33",
}


@dataclasses.dataclass(frozen=True, slots=True)
class _Signs:
    """The branches that lead to a line: to one between others, and to the last."""

    to_next: str
    to_last: str
    past: str
    none: str = "   "


_LINES = _Signs("├─ ", "└─ ", "│  ")
_ASCII = _Signs("|- ", "`- ", "|  ")


@dataclasses.dataclass(frozen=True, slots=True)
class Style:
    """The properties of a terminal.

    :ivar width: in columns; at least ``LEAST_WIDTH`` is used.
    :ivar encoding: encoding of the terminal; unsupported characters become ``?``.
    """

    width: int
    encoding: str = "utf-8"
    colours: bool = False


def render(drawing: Drawing, style: Style) -> Iterator[str]:
    """Yield the lines of the drawing, none wider than the terminal."""
    pen = _Pen(style, drawing.host.depth)
    for line in pen.tree(drawing.host, "", ""):
        yield pen.encoded(line)
    yield ""
    for line in pen.table(drawing):
        yield pen.encoded(line)


class _Pen:
    def __init__(self, style: Style, depth: int) -> None:
        self._style = style
        self._width = max(style.width, LEAST_WIDTH)
        # Half of the width is reserved for text.
        self._most = self._width // 2
        self._step = next((step for step in (3, 2) if depth * step <= self._most), 1)
        self._signs = _LINES if self.encoded(_LINES.to_next) == "├─ " else _ASCII

    def encoded(self, text: str) -> str:
        name = self._style.encoding
        return text.encode(name, "replace").decode(name)

    def tree(self, line: Line, lead: str, further: str) -> Iterator[str]:
        """Yield a line and all below it.

        :param lead: prefix of the line.
        :param further: prefix of all lines below it.
        """
        hang = self._sign(self._signs.past if line.below else self._signs.none)
        rest = self._cut(further + hang)
        lead = self._cut(lead)
        # All rows get the width of the narrowest one.
        room = self._width - max(len(lead), len(rest))
        first, *others = text_table.fold(text_table.text_of(line), room)
        yield lead + self._coloured(line, first)
        for other in others:
            yield rest + other
        for child in line.below:
            is_last = child is line.below[-1]
            to_it = self._signs.to_last if is_last else self._signs.to_next
            past = self._signs.none if is_last else self._signs.past
            yield from self.tree(
                child, further + self._sign(to_it), further + self._sign(past)
            )

    def table(self, drawing: Drawing) -> Iterator[str]:
        rows = list(text_table.table(drawing))
        cells = [row for row in rows if len(row) > 1]
        widths = [
            max(map(text_table.width, column)) for column in zip(*cells, strict=True)
        ]
        for row in rows:
            if len(row) < 2:
                yield from text_table.fold("".join(row), self._width)
                continue
            texts = (
                " " * (width - text_table.width(text)) + text
                for text, width in zip(row, widths, strict=True)
            )
            yield from text_table.fold("  " + "  ".join(texts), self._width)

    def _sign(self, sign: str) -> str:
        return sign[: self._step]

    def _cut(self, lead: str) -> str:
        """Return the end of a prefix, shortened to leave room for text."""
        return lead[-self._most :]

    def _coloured(self, line: Line, first: str) -> str:
        place = text_table.state_at(line, first)
        if not self._style.colours or place is None or line.mark not in _COLOURS:
            return first
        start, end = place
        colour = _COLOURS[line.mark]
        return f"{first[:start]}\x1b[{colour}m{first[start:end]}\x1b[0m{first[end:]}"
