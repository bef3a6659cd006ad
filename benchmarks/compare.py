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
from collections.abc import Iterator, Sequence
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

    :ivar before: median of the other tree's rounds, in ``unit``.
    :ivar after: the same for this tree.
    :ivar ratio: median of the ratios of the rounds; above 1: this tree is slower.
        If the row has a floor, each time counts as a multiple of its floor: a
        machine that is slower in one run is slower for both.
    :ivar grown: the counts that have grown or are in one tree alone.
    """

    key: Key
    unit: Unit
    before: float
    after: float
    ratio: float
    grown: tuple[str, ...]


def compare(before: Sequence[Round], after: Sequence[Round]) -> list[Comparison]:
    """Compare the rows that both trees have in each round."""
    return [
        _compared(key, [each[key] for each in before], [each[key] for each in after])
        for key in after[0]
        if key not in unpaired(before, after)
    ]


def unpaired(before: Sequence[Round], after: Sequence[Round]) -> set[Key]:
    """Return the rows that not every round of both trees has."""
    rounds: list[set[Key]] = [set(each) for each in (*before, *after)]
    everywhere = rounds[0].intersection(*rounds)
    return everywhere.union(*rounds) - everywhere


def _compared(key: Key, before: Sequence[Row], after: Sequence[Row]) -> Comparison:
    unit = after[0].unit
    ratios = [_ratio(old, new) for old, new in zip(before, after, strict=True)]
    return Comparison(
        key,
        unit,
        statistics.median(row.median for row in before),
        statistics.median(row.median for row in after),
        statistics.median(ratios),
        tuple(_grown(_largest_counts(before), _largest_counts(after))),
    )


def _ratio(before: Row, after: Row) -> float:
    if before.ratio and after.ratio and before.floor_is == after.floor_is:
        times = after.ratio / before.ratio
    else:
        times = after.median / before.median
    return times if after.unit is Unit.SECONDS else 1 / times


def _largest_counts(rounds: Sequence[Row]) -> dict[str, float]:
    found: dict[str, float] = {}
    for count in (each for row in rounds for each in row.counts):
        found[count.name] = max(count.value, found.get(count.name, count.value))
    return found


def _grown(before: dict[str, float], after: dict[str, float]) -> Iterator[str]:
    for name in sorted(before.keys() ^ after.keys()):
        yield f"{name}: counted in one tree alone"
    for name in sorted(before.keys() & after.keys()):
        if after[name] > before[name]:
            yield f"{name}: {before[name]:g} -> {after[name]:g}"


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
    """The command; its exit status is 1 if a row is slower, has grown or is missing."""
    options = _parser().parse_args(argv)
    before_tree = os.path.abspath(options.before)
    pythons = {
        before_tree: os.path.join(before_tree, ".venv", "bin", "python"),
        os.getcwd(): sys.executable,
    }
    if len(pythons) != 2 or options.rounds < 1:
        sys.exit("compare this tree with another one, in at least one round")
    measured: dict[str, list[Round]] = {tree: [] for tree in pythons}
    for number in range(options.rounds):
        for tree in sorted(pythons, reverse=bool(number % 2)):
            measured[tree].append(_measured(tree, pythons[tree], options.only))
    before, after = measured.values()
    compared = compare(before, after)
    for each in compared:
        print(
            f"{_title(each.key):60} {amount(each.before, each.unit):>12} "
            f"{amount(each.after, each.unit):>12} {each.ratio:6.2f}"
        )
    found = failures(compared, options.limit) + [
        f"{_title(key)}: not in both trees" for key in sorted(unpaired(before, after))
    ]
    print("\n".join(found) or f"none above {options.limit:g}")
    return int(bool(found))


def _parser() -> argparse.ArgumentParser:
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
        choices=catalogue.names(),
        required=True,
        metavar="NAME",
        help="a benchmark; may be repeated",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
