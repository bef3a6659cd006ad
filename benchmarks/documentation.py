# SPDX-License-Identifier: Apache-2.0

"""Write figures and pictures into the documentation."""

from __future__ import annotations

import os
from collections.abc import Sequence

from benchmarks import report, rows
from benchmarks.rows import Place

DIRECTORY = os.path.join("doc", "source", "contributor", "benchmarks")
_RESULTS = "results.json"
#: All documented rows, in the form of :mod:`benchmarks.rows`.
RESULTS = os.path.join(DIRECTORY, _RESULTS)


def write(measured: Sequence[Place], directory: str = DIRECTORY) -> None:
    """Merge new rows into the documented ones, and write tables and pictures."""
    # matplotlib takes a second to import, and only this function needs it.
    from benchmarks import pictures

    os.makedirs(directory, exist_ok=True)
    results = os.path.join(directory, _RESULTS)
    before = rows.load(results) if os.path.exists(results) else []
    places = merged(before, measured)
    rows.save(results, places)
    _write(os.path.join(directory, "machine.inc"), report.machine(places))
    for place in places:
        for name, table in report.tables(place).items():
            _write(os.path.join(directory, f"{name}.inc"), table)
    pictures.draw(places, directory)


def merged(before: Sequence[Place], measured: Sequence[Place]) -> list[Place]:
    """Return the latest rows of each benchmark."""
    places = {place.name: place for place in before}
    for place in measured:
        fresh = {row.benchmark for row in place.rows}
        kept = places[place.name].rows if place.name in places else ()
        old = [row for row in kept if row.benchmark not in fresh]
        places[place.name] = Place(place.name, place.facts, (*old, *place.rows))
    return list(places.values())


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
