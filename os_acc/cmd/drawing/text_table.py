# SPDX-License-Identifier: Apache-2.0

"""Layout of text in lines of a given width."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from os_acc.cmd.drawing.model import POLICIES, Drawing, Line

_GAP = "  "
# Marks places that must not be broken: the NO-BREAK SPACE, which no text has.
_GLUE = "\u00a0"
# Texts of up to this many columns are kept on one line.
_SHORT = 24


def width(text: str) -> int:
    """Return the number of terminal columns (Unicode Standard Annex 11)."""
    return sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def fold(text: str, room: int) -> list[str]:
    """Fold text into lines of ``room`` columns, at least two, between words.

    A longer word is broken.
    """
    lines: list[str] = []
    for word in text.split(" "):
        if lines and width(lines[-1]) + 1 + width(word) <= room:
            lines[-1] += f" {word}"
            continue
        # Spaces at a line break are dropped.
        if word or not lines:
            lines += _broken(word, room)
    return [line.rstrip().replace(_GLUE, " ") for line in lines]


def _broken(word: str, room: int) -> Iterator[str]:
    part = ""
    for character in word:
        if width(part + character) > room:
            yield part
            part = ""
        part += character
    yield part


def text_of(line: Line) -> str:
    """Return the full text of a line, to be folded."""
    details = (
        each.replace(" ", _GLUE) if width(each) <= _SHORT else each
        for each in line.details
    )
    return _GAP.join(filter(None, (line.label, line.state, "; ".join(details))))


def state_at(line: Line, first: str) -> tuple[int, int] | None:
    """Return the position of the state in the first row of the line, if any."""
    start = len(line.label) + len(_GAP)
    end = start + len(line.state)
    if line.state and first[:end] == f"{line.label}{_GAP}{line.state}":
        return start, end
    return None


def table(drawing: Drawing) -> Iterator[tuple[str, ...]]:
    """Yield the table of available accelerators.

    A row of one text is a heading, an empty one a blank line. All other rows
    have equal numbers of texts, to be right-aligned.
    """
    if not drawing.supplies:
        yield ("No accelerators are offered.",)
        return
    yield ("Free accelerators that a guest could get, by its cells and its policy",)
    for supply in drawing.supplies:
        yield ()
        yield (f"{supply.resource_class}, free: {supply.free}",)
        if supply.choices:
            yield ("cells", *(policy.value for policy in POLICIES))
        for choice in supply.choices:
            yield (choice.cells, *map(str, choice.free))
