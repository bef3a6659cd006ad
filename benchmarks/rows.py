# SPDX-License-Identifier: Apache-2.0

"""What one benchmark found: a line of the table, and how it is kept."""

from __future__ import annotations

import dataclasses
import enum
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

_FORMAT = 1


class Unit(enum.StrEnum):
    """What median, spread and floor are counted in."""

    SECONDS = "s"
    PER_SECOND = "1/s"


class Bound(enum.StrEnum):
    AT_MOST = "at most"
    AT_LEAST = "at least"


@dataclasses.dataclass(frozen=True, slots=True)
class Aim:
    """What a number should be."""

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
    """How often something happened in one call: exact, unlike a time."""

    name: str
    value: float
    aim: Aim | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    :ivar benchmark: the group that it belongs to, and its picture: ``discovery``.
    :ivar case: what was measured; one curve in the picture: ``scan``.
    :ivar size: how much of it there was, and
    :ivar things: of what: 1024 ``functions``.
    :ivar median: of the samples, in ``unit``, as is
    :ivar spread: the distance between their quartiles.
    :ivar floor: the median of what it is compared with, in ``unit``.
    :ivar floor_is: what that is, in a few words; a curve of its own.
    :ivar ratio: the median of the ratios of pairs, each measured in one go.
    :ivar ratio_spread: the distance between their quartiles.
    :ivar aim: what the ratio should be.
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
        """What tells it from every other row."""
        return (self.benchmark, self.case, self.size, self.floor_is)


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """All that was measured on one machine.

    :ivar name: ``host``, or ``virtual machine``.
    :ivar facts: of the machine, for the reader: processor, kernel, Python.
    """

    name: str
    facts: Mapping[str, str]
    rows: tuple[Row, ...]


def save(path: str | os.PathLike[str], places: Sequence[Place]) -> None:
    """Write what was found into a file."""
    text = json.dumps(
        {"format": _FORMAT, "places": [dataclasses.asdict(each) for each in places]},
        indent=1,
    )
    with open(path, "w", encoding="utf-8") as file:
        file.write(text + "\n")


def load(path: str | os.PathLike[str]) -> list[Place]:
    """Read what ``save`` wrote.

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
