# SPDX-License-Identifier: Apache-2.0

"""Tables for people: texts are folded between words until the table fits."""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TextIO

from cliff import columns
from cliff.formatters import table

#: Columns of a table that does not go to a terminal: those of the manual's examples.
WIDTH: Final = 100
#: A text is not folded below this width.
_LEAST: Final = 24
_BORDER: Final = len(" | ")


class FoldedTable(table.TableFormatter):
    """cliff's table, which never breaks a word: an address or a UUID can be copied.

    A path that is longer than its column is broken at its directories. A table of many
    columns can exceed the width.
    """

    @staticmethod
    def _assign_max_widths(*_arguments: Any, **_named: Any) -> None:
        """Break no word; cliff does so on each terminal."""

    def emit_one(
        self,
        column_names: Sequence[str],
        data: Sequence[Any],
        stdout: TextIO,
        parsed_args: argparse.Namespace,
    ) -> None:
        """Write the table of one object; see :meth:`emit_list`."""
        rows = zip(column_names, map(str, map(_text, data)), strict=True)
        self.emit_list(("Field", "Value"), rows, stdout, parsed_args)

    def emit_list(
        self,
        column_names: Sequence[str],
        data: Iterable[Sequence[Any]],
        stdout: TextIO,
        parsed_args: argparse.Namespace,
    ) -> None:
        """Write the table, folded to --max-width or the terminal."""
        limit = parsed_args.max_width
        if limit < 1:
            limit = shutil.get_terminal_size().columns if stdout.isatty() else WIDTH
        rows = [tuple(map(_text, row)) for row in data]
        by_column = list(zip(column_names, *rows, strict=True))
        widths = [max(map(_width, cells)) for cells in by_column]
        least = [
            min(width, max(_LEAST, len(cells[0]), *map(_longest_word, cells)))
            for width, cells in zip(widths, by_column, strict=True)
        ]
        while sum(widths) + _BORDER * len(widths) + 1 > limit and widths != least:
            foldable = [at for at, each in enumerate(least) if widths[at] > each]
            widths[max(foldable, key=widths.__getitem__)] -= 1
        folded = [
            tuple(_folded(*each) for each in zip(row, widths, strict=True))
            for row in rows
        ]
        super().emit_list(column_names, folded, stdout, parsed_args)


def _text(value: Any) -> Any:
    """Return a value for people: None and [] as a dash, a list as lines."""
    if isinstance(value, columns.FormattableColumn):
        return value.human_readable()
    if value is None or value == []:
        return "-"
    return "\n".join(map(str, value)) if isinstance(value, list) else value


def _width(cell: Any) -> int:
    return max(map(len, str(cell).splitlines()), default=0)


def _longest_word(cell: Any) -> int:
    return max(map(len, str(cell).replace("/", "/ ").split()), default=0)


def _folded(cell: Any, width: int) -> Any:
    if not isinstance(cell, str):
        # cliff aligns a number at the right.
        return cell
    return "\n".join(
        part
        for line in cell.splitlines()
        for words in textwrap.wrap(
            line, width, break_long_words=False, break_on_hyphens=False
        )
        or [""]
        for part in _broken(words, width)
    )


def _broken(text: str, width: int) -> Iterator[str]:
    while len(text) > width and (end := text.rfind("/", 1, width) + 1):
        yield text[:end]
        text = text[end:]
    yield text
