# SPDX-License-Identifier: Apache-2.0

"""The arguments and the permitted writes of the call that configures QuickAssist."""

from __future__ import annotations

from typing import Any

from tests.random_values import RandomValues
from tests.stress.privileged_host import Card

_SERVICES = ("sym", "asym", "dc", "dcc", "decomp")
_CONFIGURABLE = {(0x8086, product) for product in range(0x4940, 0x494A, 2)}


def arguments(rng: RandomValues, card: Card, patience: int) -> tuple[Any, ...]:
    """Return arguments for a card, with services that may be impossible."""
    return card.place, card.identity, rng.pick((1, 3, 4, 8, 0, 9, 31)), 1, patience


def are_services(value: object) -> bool:
    """Return whether a number stands for services that some device combines."""
    if type(value) is not int or not 1 <= value <= 31:
        return False
    names = _names(value)
    return len(names) == 1 or ("dcc" not in names and len(names) <= 3)


def permitted(
    card: Card, target: tuple[Any, ...], given: tuple[Any, ...]
) -> frozenset[tuple[str, str]]:
    """Return the permitted writes: the services, and those of the simulated card."""
    if tuple(target[1]) != card.identity or card.identity[:2] not in _CONFIGURABLE:
        return frozenset()
    place = f"sys/bus/pci/devices/{card.name}/qat"
    services = f"{place}/cfg_services"
    return frozenset(
        {
            (f"{place}/state", "down"),
            (f"{place}/state", "up"),
            (services, ";".join(_names(given[2]))),
            (services, "sym;asym"),
        }
    )


def _names(value: int) -> list[str]:
    return [name for n, name in enumerate(_SERVICES) if value >> n & 1]
