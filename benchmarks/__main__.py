# SPDX-License-Identifier: Apache-2.0

"""Run the benchmarks, print the tables, and update the documentation's figures."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence

from benchmarks import catalogue, documentation, machine, report, rows
from benchmarks.plan import Plan, complete
from tests.shares import Share

_OUTPUT = os.path.join("build", "benchmarks")
#: The number of shares among which the benchmarks are divided.
SHARES = 12


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", allow_abbrev=False)
    parser.add_argument(
        "--short",
        action="store_true",
        help="only show that every benchmark still runs; no figure is worth anything",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=catalogue.names(),
        metavar="NAME",
        help=f"one of {', '.join(catalogue.names())}; may be repeated",
    )
    parser.add_argument(
        "--share",
        type=int,
        metavar="NUMBER",
        help="run every eighth benchmark: those of the share that has this number",
    )
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help="put the figures into the documentation; what was not measured now"
        " stays as it is there",
    )
    options = parser.parse_args(argv)
    partial = options.short or options.share is not None
    if partial and options.write_docs:
        parser.error("figures of a short run or a share are not for the documentation")
    os.makedirs(_OUTPUT, exist_ok=True)
    share = Share(options.share)
    names = share.select(options.only or catalogue.names(), SHARES)
    plan = Plan(options.short, _OUTPUT, catalogue.KERNEL in names)
    places = _measured(plan, names)
    rows.save(os.path.join(_OUTPUT, "results.json"), places)
    for place in places:
        print("\n".join([f"\n==== {place.name} ====", *report.text(place.rows)]))
    if options.write_docs:
        documentation.write(places)
    return 0


def _measured(plan: Plan, names: Sequence[str]) -> list[rows.Place]:
    places = []
    if plan.kernel:
        # It runs first: its results delay the writes of the other benchmarks' fake
        # kernels.
        with _progress(catalogue.KERNEL):
            places.append(catalogue.measure_kernel(plan))
    found: list[rows.Row] = []
    for benchmark in catalogue.HOST:
        if benchmark.name in names:
            with _progress(benchmark.name):
                found += complete(benchmark, plan)
    if found:
        places.insert(0, rows.Place("host", machine.facts(), tuple(found)))
    return places


@contextlib.contextmanager
def _progress(name: str) -> Iterator[None]:
    print(f"{name} ...", end=" ", file=sys.stderr, flush=True)
    start = time.monotonic()
    yield
    print(f"{time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
