# SPDX-License-Identifier: Apache-2.0

"""The host of privileged calls under test, its functions, and an entry point."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from tests.random_values import RandomValues

Arguments = tuple[Any, ...]
Writes = frozenset[tuple[str, str]]


@dataclasses.dataclass(frozen=True, slots=True)
class Card:
    """A function that is present."""

    place: tuple[int, int, int, int]
    identity: tuple[int, ...]
    group: int
    driver: str
    is_bridge: bool = False
    is_nvme: bool = False

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


@dataclasses.dataclass(frozen=True, slots=True)
class EntryPoint:
    """One entry point.

    :ivar invent: returns arguments that it accepts, for functions of a host or
        others.
    :ivar takes: returns whether it accepts arguments.
    :ivar named: returns the functions in arguments, with their stated identity.
    :ivar writes: returns the attributes that it may write for such a function,
        and the texts, if the function is present with this identity.
    :ivar locks: whether it leaves the locks of its functions behind.
    :ivar skips_missing: whether it locks functions although others are missing.
    :ivar before: makes the helper's own files for functions without which a call is
        refused.
    """

    call: Callable[..., Any]
    invent: Callable[[RandomValues, Host], Arguments]
    takes: Callable[..., bool]
    named: Callable[[Arguments], list[Arguments]]
    writes: Callable[[Card, Arguments, Arguments], Writes]
    locks: bool = True
    skips_missing: bool = False
    before: Callable[[list[Card], Arguments], None] | None = None

    def make_ready(self, host: Host, arguments: Arguments) -> None:
        """Make the files that let a call reach the code behind them."""
        if self.before is None or not self.fits(arguments):
            return
        if cards := self.locked(host, arguments):
            self.before(cards, arguments)

    def fits(self, arguments: Arguments) -> bool:
        """Return whether the number of arguments is right."""
        # A step's function is behind the entry point that wraps it.
        own = inspect.signature(self._function, follow_wrapped=False)
        try:
            own.bind(*arguments)
        except TypeError:
            return False
        return True

    @property
    def context(self) -> str:
        """The path of the context whose helper runs it."""
        path: str = self.call.func.__self__.pypath  # type: ignore[attr-defined]
        return path

    @property
    def name(self) -> str:
        """The name in the call of a client."""
        return f"{self._function.__module__}.{self._function.__name__}"

    @property
    def _function(self) -> Callable[..., Any]:
        function: Callable[..., Any] = self.call.args[0]  # type: ignore[attr-defined]
        return function

    def locked(self, host: Host, arguments: Arguments) -> list[Card]:
        """Return the functions whose locks a call may leave behind."""
        if not self.locks or not self.takes(*arguments):
            return []
        found = [host.cards.get(tuple(place)) for place, *_ in self.named(arguments)]
        if None in found and not self.skips_missing:
            return []
        return [card for card in found if card is not None]

    def permitted(self, host: Host, arguments: Arguments) -> Writes:
        """Return every permitted write of a call: path below the root, and text."""
        writes: set[tuple[str, str]] = set()
        for card in self.locked(host, arguments):
            for target in self.named(arguments):
                if tuple(target[0]) == card.place:
                    writes |= self.writes(card, target, arguments)
        return frozenset(writes)
