# SPDX-License-Identifier: Apache-2.0

"""The host of privileged calls under test, and its functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, slots=True)
class Card:
    """A function that is present."""

    place: tuple[int, int, int, int]
    identity: tuple[int, ...]
    group: int
    driver: str
    is_bridge: bool = False

    @property
    def name(self) -> str:
        domain, bus, slot, function = self.place
        return f"{domain:04x}:{bus:02x}:{slot:02x}.{function}"


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """The host under test.

    :ivar root: the directory of ``/sys``.
    """

    root: str
    cards: Mapping[tuple[int, ...], Card]
