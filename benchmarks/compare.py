# SPDX-License-Identifier: Apache-2.0

"""Compare this tree with another one, measured in turn on the same machine.

``python -m benchmarks.compare --before TREE`` runs the benchmarks of both trees one
after the other, with the order changing from round to round. TREE is a checkout
of an earlier commit with an environment of its own in ``.venv``.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from typing import Final, TypeAlias

from benchmarks import catalogue, rows
from benchmarks.report import amount
from benchmarks.rows import Row, Unit

_RESULTS: Final = os.path.join("build", "benchmarks", "results.json")
#: A row of either tree: benchmark, case and size.
Key: TypeAlias = tuple[str, str, int]
#: The rows of one run of a tree.
Round: TypeAlias = dict[Key, Row]


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """One row, before and after.

    :ivar before: median of the rounds of the earlier tree, in ``unit``.
    :ivar after: median of the rounds of this tree, in ``unit``.
    :ivar ratio: median of the ratios of the rounds; above 1: this tree is slower.
    :ivar grown: the counts that have grown, "name: before -> after".
    """

    key: Key
    unit: Unit
    before: float
    after: float
    ratio: float
    grown: tuple[str, ...]


def compare(before: Sequence[Round], after: Sequence[Round]) -> list[Comparison]:
    """Compare the rows that both trees have in each round."""
    common = set.intersection(*(set(each) for each in (*before, *after)))
    return [
        _compared(key, [each[key] for each in before], [each[key] for each in after])
        for key in after[0]
        if key in common
    ]


def _compared(key: Key, before: Sequence[Row], after: Sequence[Row]) -> Comparison:
    unit = after[0].unit
    ratios = [
        new.median / old.median if unit is Unit.SECONDS else old.median / new.median
        for old, new in zip(before, after, strict=True)
    ]
    counts = {count.name: count.value for count in before[-1].counts}
    return Comparison(
        key,
        unit,
        statistics.median(row.median for row in before),
        statistics.median(row.median for row in after),
        statistics.median(ratios),
        tuple(
            f"{count.name}: {counts[count.name]:g} -> {count.value:g}"
            for count in after[-1].counts
            if count.name in counts and count.value > counts[count.name]
        ),
    )


def failures(compared: Sequence[Comparison], limit: float) -> list[str]:
    """Return the rows that are slower than a limit, or whose counts have grown."""
    return [
        f"{_title(each.key)}: {reason}"
        for each in compared
        for reason in (
            *([f"{each.ratio:.2f} times"] if each.ratio > limit else []),
            *each.grown,
        )
    ]


def _title(key: Key) -> str:
    benchmark, case, size = key
    return f"{benchmark}, {case}, {size:,}"


def _measured(tree: str, python: str, names: Sequence[str]) -> Round:
    chosen = [part for name in names for part in ("--only", name)]
    subprocess.run(
        [python, "-m", "benchmarks", *chosen],
        cwd=tree,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    found = rows.load(os.path.join(tree, _RESULTS))
    return {
        (row.benchmark, row.case, row.size): row
        for place in reversed(found)
        # A case with several floors keeps its first row.
        for row in reversed(place.rows)
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if a row has become slower or a count has grown."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare", allow_abbrev=False
    )
    parser.add_argument("--before", required=True, metavar="TREE", help="a checkout")
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument(
        "--limit", type=float, default=1.05, help="largest ratio; default: 1.05"
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=[each for each in catalogue.names() if each != catalogue.KERNEL],
        required=True,
        metavar="NAME",
        help="a benchmark; may be repeated",
    )
    options = parser.parse_args(argv)
    trees = {
        options.before: os.path.join(options.before, ".venv", "bin", "python"),
        os.getcwd(): sys.executable,
    }
    measured: dict[str, list[Round]] = {tree: [] for tree in trees}
    for number in range(options.rounds):
        for tree in sorted(trees, reverse=bool(number % 2)):
            measured[tree].append(_measured(tree, trees[tree], options.only))
    before, after = measured.values()
    compared = compare(before, after)
    for each in compared:
        print(
            f"{_title(each.key):60} {amount(each.before, each.unit):>12} "
            f"{amount(each.after, each.unit):>12} {each.ratio:6.2f}"
        )
    for key in sorted({key for each in (*before, *after) for key in each}):
        if key not in {each.key for each in compared}:
            print(f"{_title(key)}: not in both trees")
    found = failures(compared, options.limit)
    print("\n".join(found) or f"none above {options.limit:g}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
