# SPDX-License-Identifier: Apache-2.0

"""Results of benchmarks: rows of the tables, and their file format."""

from __future__ import annotations

import dataclasses
import enum
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

_FORMAT = 1


class Unit(enum.StrEnum):
    """The unit of median, spread and floor."""

    SECONDS = "s"
    PER_SECOND = "1/s"


class Bound(enum.StrEnum):
    AT_MOST = "at most"
    AT_LEAST = "at least"


@dataclasses.dataclass(frozen=True, slots=True)
class Aim:
    """The target of a number."""

    value: float
    bound: Bound = Bound.AT_MOST

    def met_by(self, number: float) -> bool:
        if self.bound is Bound.AT_MOST:
            return number <= self.value
        return number >= self.value

    def __str__(self) -> str:
        return f"{self.bound} {self.value:g}"


@dataclasses.dataclass(frozen=True, slots=True)
class Count:
    """The exact number of events in one call."""

    name: str
    value: float
    aim: Aim | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One row of a table.

    :ivar benchmark: its group and the group's picture: ``discovery``.
    :ivar case: the measured work; one curve in the picture: ``scan``.
    :ivar size: the number of
    :ivar things: the unit of ``size``: 1024 ``functions``.
    :ivar median: of the samples, in ``unit``.
    :ivar spread: the distance between their quartiles, in ``unit``.
    :ivar floor: the median of the compared work, in ``unit``.
    :ivar floor_is: a short description of that work; a curve of its own.
    :ivar ratio: the median of the ratios of pairs, each measured together.
    :ivar ratio_spread: the distance between their quartiles.
    :ivar aim: the target of the ratio.
    """

    benchmark: str
    case: str
    size: int
    things: str
    unit: Unit
    median: float
    spread: float
    samples: int
    floor: float | None = None
    floor_is: str = ""
    ratio: float | None = None
    ratio_spread: float | None = None
    aim: Aim | None = None
    counts: tuple[Count, ...] = ()

    @property
    def key(self) -> tuple[str, str, int, str]:
        """Return the key that identifies the row."""
        return (self.benchmark, self.case, self.size, self.floor_is)


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """All rows of one machine.

    :ivar name: ``host``, or ``virtual machine``.
    :ivar facts: of the machine, for the reader: processor, kernel, Python.
    """

    name: str
    facts: Mapping[str, str]
    rows: tuple[Row, ...]


def save(path: str | os.PathLike[str], places: Sequence[Place]) -> None:
    """Write rows into a file."""
    text = json.dumps(
        {"format": _FORMAT, "places": [dataclasses.asdict(each) for each in places]},
        indent=1,
    )
    with open(path, "w", encoding="utf-8") as file:
        file.write(text + "\n")


def load(path: str | os.PathLike[str]) -> list[Place]:
    """Read a file of :func:`save`.

    :raises ValueError: the file was written in another format.
    """
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    if document["format"] != _FORMAT:
        raise ValueError(f"{path} has format {document['format']}, not {_FORMAT}")
    return [_place(each) for each in document["places"]]


def _place(fields: dict[str, Any]) -> Place:
    return Place(**(fields | {"rows": tuple(_row(each) for each in fields["rows"])}))


def _row(fields: dict[str, Any]) -> Row:
    counts = tuple(
        Count(**(each | {"aim": _aim(each["aim"])})) for each in fields["counts"]
    )
    known = {"unit": Unit(fields["unit"]), "aim": _aim(fields["aim"]), "counts": counts}
    return Row(**(fields | known))


def _aim(fields: dict[str, Any] | None) -> Aim | None:
    if fields is None:
        return None
    return Aim(fields["value"], Bound(fields["bound"]))
