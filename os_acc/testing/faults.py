# SPDX-License-Identifier: Apache-2.0

"""Faults that strike writes, of all processes."""

from __future__ import annotations

import dataclasses
import enum
from typing import TypedDict

from os_acc.testing import records
from os_acc.testing.tree import PRIVATE, Transaction, serial

_PENDING = f"{PRIVATE}/faults/pending"
_HANGING = f"{PRIVATE}/faults/hanging"


class Effect(enum.StrEnum):
    """The effect of a fault on a write: instead of, before or after its own."""

    FAIL = "fail"
    HANG = "hang"
    IGNORE = "ignore"
    KILL_BEFORE = "kill before"
    KILL_AFTER = "kill after"


class Struck(TypedDict, total=False):
    """The matching writes that a fault strikes; by default the first one.

    :ivar times: their number; None: all.
    :ivar nth: the first one, counted from 1.
    """

    times: int | None
    nth: int


@dataclasses.dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault, and the writes that it strikes.

    :ivar address: the function; empty for any.
    :ivar attribute: ``driver_override``, ``bind``, ``unbind``, ...; empty for
        any.
    :ivar skip: number of matching writes that it spares first.
    :ivar times: number of writes that it then strikes; None: all.
    :ivar text: the hardware's report.
    """

    number: int
    effect: str
    address: str = ""
    attribute: str = ""
    errno: int = 0
    skip: int = 0
    times: int | None = 1
    text: str = ""

    def strikes(self, address: str, attribute: str) -> bool:
        """Return whether the fault is for a write."""
        return self.address in ("", address) and self.attribute in ("", attribute)

    def used(self) -> InjectedFault | None:
        """Return the fault as it is after one more write, if it remains."""
        if self.skip:
            return dataclasses.replace(self, skip=self.skip - 1)
        if self.times is None:
            return self
        left = self.times - 1
        return dataclasses.replace(self, times=left) if left else None


def add(tree: Transaction, fault: InjectedFault) -> None:
    """Add a fault."""
    _keep(tree, _PENDING, dataclasses.replace(fault, number=serial(tree)))


def take(tree: Transaction, address: str, attribute: str) -> InjectedFault | None:
    """Return the fault that strikes this write; count the write for all faults."""
    for name in tree.list(_PENDING):
        fault = records.load(InjectedFault, tree.read(f"{_PENDING}/{name}"))
        if not fault.strikes(address, attribute):
            continue
        left = fault.used()
        if left is None:
            tree.drop(f"{_PENDING}/{name}")
        else:
            _keep(tree, _PENDING, left)
        if fault.skip:
            continue
        if fault.effect == Effect.HANG:
            # A write of its own to lift: others may be struck meanwhile.
            fault = dataclasses.replace(
                fault, number=serial(tree), address=address, attribute=attribute
            )
            _keep(tree, _HANGING, fault)
        return fault
    return None


def hangs(tree: Transaction, fault: InjectedFault | None) -> bool:
    """Return whether a fault still lets a write hang."""
    return fault is not None and tree.exists(f"{_HANGING}/{fault.number:08}")


def lift(tree: Transaction, address: str, attribute: str) -> None:
    """Remove the faults that match, and resume the writes that hang."""
    for where in (_PENDING, _HANGING):
        for name in tree.list(where):
            fault = records.load(InjectedFault, tree.read(f"{where}/{name}"))
            if address in ("", fault.address) and attribute in ("", fault.attribute):
                tree.drop(f"{where}/{name}")


def _keep(tree: Transaction, where: str, fault: InjectedFault) -> None:
    tree.put(f"{where}/{fault.number:08}", records.dump(fault))
