# SPDX-License-Identifier: Apache-2.0

"""Metrics in the OpenMetrics text format 1.0.

https://prometheus.io/docs/specs/om/open_metrics_spec/
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Iterator, Mapping


class MetricType(enum.Enum):
    """The type of a metric family, as far as os_acc has metrics of it."""

    GAUGE = "gauge"
    COUNTER = "counter"


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """One value, with the labels that distinguish it within its family."""

    value: float
    labels: Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class MetricFamily:
    """The samples of one metric.

    :ivar name: ends with the unit, if the metric has one; without ``_total``.
    :ivar unit: in the base units of the specification; '' for a plain number.
    """

    name: str
    type: MetricType
    help: str
    samples: tuple[Sample, ...]
    unit: str = ""


def exposition(families: Iterable[MetricFamily]) -> str:
    """Return the text of metric families; those without a sample are left out."""
    lines = [line for each in families if each.samples for line in _lines(each)]
    return "\n".join([*lines, "# EOF", ""])


def _lines(family: MetricFamily) -> Iterator[str]:
    yield f"# TYPE {family.name} {family.type.value}"
    if family.unit:
        yield f"# UNIT {family.name} {family.unit}"
    yield f"# HELP {family.name} {_escaped(family.help)}"
    suffix = "_total" if family.type is MetricType.COUNTER else ""
    for each in family.samples:
        labels = ",".join(
            f'{name}="{_escaped(value)}"' for name, value in each.labels.items()
        )
        yield f"{family.name}{suffix}{{{labels}}} {each.value:.17g}"


def _escaped(text: str) -> str:
    for character, escape in (("\\", "\\\\"), ("\n", "\\n"), ('"', '\\"')):
        text = text.replace(character, escape)
    return text
