# SPDX-License-Identifier: Apache-2.0

"""Check the tables of the built manual: a row that is cut in two has empty cells.

docutils makes a row of its own of the second line of a first cell in a simple table,
without a warning. No cell of the manual is empty, so the page shows such a row.

A row in which every cell continues has no empty cell, and looks like any other on the
page: tests/unit/test_manual.py finds it in the source.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

#: Pages with generated figures; a column without a value stays empty.
_FIGURES = ("benchmarks.html",)

#: Generated pages, whose tables are not the manual's.
_GENERATED = ("genindex.html", "search.html", "py-modindex.html")


class Tables(HTMLParser):
    """Collects the rows of all tables of a page.

    :ivar tables: for each table its body's rows, for each row the text of its cells.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self._depth = 0
        self._is_in_cell = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self._depth += 1
            self.tables.append([])
        elif self._depth and tag == "tr":
            self.tables[-1].append([])
        elif self._depth and tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._is_in_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self._depth -= 1
        elif tag in ("td", "th"):
            self._is_in_cell = False

    def handle_data(self, data: str) -> None:
        if self._is_in_cell:
            self.tables[-1][-1][-1] += data


def cut_rows(html: str) -> Iterator[str]:
    """Yield the rows of a page that are the rest of the row above them."""
    page = Tables()
    page.feed(html)
    for rows in page.tables:
        for row in rows:
            cells = [" ".join(cell.split()) for cell in row]
            if not all(cells):
                yield " | ".join(cells)


def count(html: str) -> int:
    """Return the number of tables of a page."""
    page = Tables()
    page.feed(html)
    return len(page.tables)


def main(directory: str) -> int:
    pages = sorted(Path(directory).rglob("*.html"))
    pages = [page for page in pages if page.name not in _GENERATED]
    tables = failures = 0
    for page in pages:
        html = page.read_text(encoding="utf-8")
        tables += count(html)
        for row in () if page.name in _FIGURES else cut_rows(html):
            failures += 1
            print(f"{page.relative_to(directory)}: a cut row: {row}", file=sys.stderr)
    print(f"{len(pages)} pages, {tables} tables, {failures} cut rows")
    return 1 if failures or not tables else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
