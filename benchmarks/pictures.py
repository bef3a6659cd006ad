# SPDX-License-Identifier: Apache-2.0

"""Draw each benchmark's figures by size."""

from __future__ import annotations

import os
from collections.abc import Iterable

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from benchmarks.rows import Place, Row, Unit

# An explicit background: the page may be light or dark.
_GROUND, _INK, _LINES = "#fbfbf8", "#1f2933", "#c9ced4"
_COLOURS = (
    "#0b6e99",
    "#c2410c",
    "#4d7c0f",
    "#7e22ce",
    "#b45309",
    "#be123c",
    "#475569",
)

matplotlib.rcParams.update(
    {
        # The same figures give the same file, and text stays text.
        "svg.hashsalt": "os_acc",
        "svg.fonttype": "none",
        "font.sans-serif": ["DejaVu Sans"],
        "text.color": _INK,
        "axes.labelcolor": _INK,
        "axes.edgecolor": _LINES,
        "xtick.color": _INK,
        "ytick.color": _INK,
    }
)


def draw(places: Iterable[Place], directory: str) -> list[str]:
    """Draw a picture for each benchmark with several sizes; return the file names."""
    drawn = []
    for place in places:
        for name in dict.fromkeys(row.benchmark for row in place.rows):
            rows = _growing([row for row in place.rows if row.benchmark == name])
            if rows:
                path = os.path.join(directory, f"{name}.svg")
                _draw(name, rows, path)
                drawn.append(path)
    return drawn


def _growing(rows: list[Row]) -> list[Row]:
    """Return the rows of the cases that were measured in several sizes."""
    sizes: dict[str, set[int]] = {}
    for row in rows:
        sizes.setdefault(row.case, set()).add(row.size)
    return [row for row in rows if len(sizes[row.case]) > 1]


def _draw(name: str, rows: list[Row], path: str) -> None:
    figure = Figure(facecolor=_GROUND, layout="constrained")
    axes = figure.add_subplot(facecolor=_GROUND)
    sizes = sorted({row.size for row in rows})
    for number, case in enumerate(dict.fromkeys(row.case for row in rows)):
        _curve(axes, _COLOURS[number], [row for row in rows if row.case == case])
    axes.set_xscale("symlog", base=2, linthresh=max(1, sizes[0] or 1))
    axes.set_yscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.xaxis.minorticks_off()
    axes.set_xlabel(rows[0].things)
    per_second = rows[0].unit is Unit.PER_SECOND
    axes.set_ylabel("each second" if per_second else "milliseconds")
    axes.yaxis.set_major_formatter(lambda value, _place: f"{value:g}")
    axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.4)))
    axes.set_title(name, color=_INK)
    axes.grid(color=_LINES, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    labels, _ = axes.get_legend_handles_labels()
    figure.set_size_inches(7, 3.6 + 0.2 * len(labels))
    figure.legend(loc="outside lower left", frameon=False, fontsize="small")
    figure.savefig(
        path, format="svg", metadata={"Date": None, "Creator": None}, facecolor=_GROUND
    )


def _curve(axes, colour: str, rows: list[Row]) -> None:  # type: ignore[no-untyped-def]
    rows = sorted(rows, key=lambda row: row.size)
    factor = 1.0 if rows[0].unit is Unit.PER_SECOND else 1e3
    sizes = [row.size for row in rows]
    medians = [row.median * factor for row in rows]
    spreads = [row.spread * factor / 2 for row in rows]
    axes.errorbar(
        sizes,
        medians,
        yerr=spreads,
        color=colour,
        marker="o",
        markersize=4,
        linewidth=1.6,
        capsize=2,
        label=rows[0].case,
    )
    if len(rows) > 1 and all(row.floor is not None for row in rows):
        axes.plot(
            sizes,
            [(row.floor or 0) * factor for row in rows],
            color=colour,
            linestyle="--",
            linewidth=1.2,
            label=f"{rows[0].case}: {rows[0].floor_is}",
        )
