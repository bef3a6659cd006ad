# SPDX-License-Identifier: Apache-2.0

"""Format the tables, for the terminal and for the documentation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from benchmarks.rows import Place, Row, Unit

HEADINGS = (
    "Case",
    "Size",
    "Median",
    "Spread",
    "Floor",
    "Ratio",
    "Aim",
    "Met",
    "Floor is",
    "Counted",
)
_WRITTEN = ".. Written by python -m benchmarks --write-docs."
_RIGHT = frozenset({"Size", "Median", "Spread", "Floor", "Ratio"})


def text(rows: Sequence[Row]) -> list[str]:
    """Return the lines for the terminal."""
    lines: list[str] = []
    for name in dict.fromkeys(row.benchmark for row in rows):
        lines += [
            "",
            name,
            *_columns([each for each in rows if each.benchmark == name]),
        ]
    return lines


def tables(place: Place) -> dict[str, str]:
    """Return the table of each benchmark, by the name of its include file."""
    found = {}
    for name in dict.fromkeys(row.benchmark for row in place.rows):
        rows = [row for row in place.rows if row.benchmark == name]
        found[name] = "\n".join([_WRITTEN, "", *_list_table(name, rows)]) + "\n"
    return found


def machine(places: Iterable[Place]) -> str:
    """Return the facts of the machines as an include file."""
    lines = [_WRITTEN, ""]
    for place in places:
        facts = ", ".join(f"{name} {value}" for name, value in place.facts.items())
        lines += [place.name.capitalize(), f"    {facts}."]
    return "\n".join(lines) + "\n"


def cells(row: Row) -> tuple[str, ...]:
    """Return a row's cells, in the order of the headings."""
    met = "" if row.aim is None or row.ratio is None else _met(row)
    around = digits(row.ratio_spread or 0)
    ratio = "" if row.ratio is None else f"{digits(row.ratio)} ± {around}"
    return (
        row.case,
        f"{row.size:,} {row.things}",
        amount(row.median, row.unit),
        amount(row.spread, row.unit),
        "" if row.floor is None else amount(row.floor, row.unit),
        ratio,
        "" if row.aim is None else str(row.aim),
        met,
        row.floor_is,
        ", ".join(_counts(row)),
    )


def _met(row: Row) -> str:
    assert row.aim is not None
    assert row.ratio is not None
    return "yes" if row.aim.met_by(row.ratio) else "no"


def _counts(row: Row) -> list[str]:
    formatted = []
    for count in row.counts:
        aim = "" if count.aim is None else f" (aim: {count.aim})"
        formatted.append(f"{count.value:g} {count.name}{aim}")
    return formatted


def amount(value: float, unit: Unit) -> str:
    """Format a number with its unit, short enough for a column."""
    if unit is Unit.PER_SECOND:
        return f"{digits(value)}/s"
    for factor, name in ((1.0, "s"), (1e-3, "ms")):
        if abs(value) >= factor:
            return f"{digits(value / factor)} {name}"
    return f"{digits(value / 1e-6)} µs"


def digits(value: float) -> str:
    """Format three significant digits, without an exponent."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    places = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(places, 4)}f}"


def _table(rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """Return the headings and all rows, without empty columns."""
    lines = [cells(row) for row in rows]
    used = [n for n in range(len(HEADINGS)) if any(line[n] for line in lines)]
    return [tuple(line[n] for n in used) for line in [HEADINGS, *lines]]


def _columns(rows: Sequence[Row]) -> list[str]:
    table = _table(rows)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if heading in _RIGHT else cell.ljust(width)
            for heading, cell, width in zip(table[0], line, widths, strict=True)
        ).rstrip()
        for line in table
    ]


def _list_table(title: str, rows: Sequence[Row]) -> list[str]:
    lines = [f".. list-table:: {title}", "   :header-rows: 1", "   :widths: auto", ""]
    for line in _table(rows):
        first, *others = line
        lines.append(f"   * - {first}")
        lines += [f"     - {cell}".rstrip() for cell in others]
    return [*lines, ""]
