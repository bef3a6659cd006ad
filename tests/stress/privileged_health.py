# SPDX-License-Identifier: Apache-2.0

"""The arguments of health steps, which write nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from os_acc.privsep import HealthReading, Step, qat
from os_acc.privsep.nvme import steps as nvme
from tests.random_values import RandomValues
from tests.stress.argument_forms import are_functions, is_number
from tests.stress.privileged_host import Card, Host

_T = TypeVar("_T")

STEPS: Final[Mapping[str, Step[HealthReading, *tuple[Any, ...]]]] = {
    "qat.heartbeat": qat.heartbeat,
    "nvme.steps.health": nvme.health,
}
#: The steps that take the names of the operator's methods.
WITH_METHODS: Final = frozenset({"nvme.steps.health"})


def rows(
    entry_point: Callable[..., _T],
    some: Callable[[RandomValues, Host], Card],
    patience: Callable[[RandomValues], int],
) -> dict[str, _T]:
    """Return the entry point of each step, by its name.

    :param some: returns a card of a host, or another one.
    :param patience: returns a time limit in milliseconds.
    """

    def row(name: str) -> _T:
        methods = name in WITH_METHODS

        def invent(rng: RandomValues, host: Host) -> tuple[Any, ...]:
            card = some(rng, host)
            arguments = (rng.pick(((), ("format",), ("none",))),) if methods else ()
            return (card.place, card.identity), patience(rng), arguments

        def are_right(member: Any, milliseconds: object, arguments: Any) -> bool:
            return (
                are_functions((member,))
                and is_number(milliseconds, 1, 600_000)
                and type(arguments) is tuple
                and len(arguments) == methods
                and all(map(_are_texts, arguments))
            )

        return entry_point(
            STEPS[name].entry,
            invent,
            are_right,
            lambda given: [given[0]],
            lambda *_: frozenset(),
        )

    return {name: row(name) for name in STEPS}


def _are_texts(value: Any) -> bool:
    # The channel carries Unicode alone.
    return type(value) is tuple and all(
        type(each) is str and each.encode("utf-8", "replace").decode() == each
        for each in value
    )
