# SPDX-License-Identifier: Apache-2.0

"""Writes that the kernel has begun and ends when a guest closes its function.

The kernel ends them even if the writer is killed meanwhile.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from os_acc.testing import drivers, holders, records
from os_acc.testing.tree import PRIVATE, Transaction, serial
from os_acc.testing.writes import Write, WriteOutcome, WriteTarget, name_of, perform

_PENDING = f"{PRIVATE}/pending"


@dataclasses.dataclass(frozen=True, slots=True)
class Pending:
    """A write under way; without a path: a hot unplug."""

    target: WriteTarget
    text: str
    path: str = ""
    pid: int = 0


def add(tree: Transaction, write: Pending) -> int:
    """Record that a write is under way; return its number."""
    number = serial(tree)
    tree.put(f"{_PENDING}/{number:08}", records.dump(write))
    return number


def is_under_way(tree: Transaction, number: int) -> bool:
    """Return whether a write has not ended yet."""
    return tree.exists(f"{_PENDING}/{number:08}")


def locks(tree: Transaction, address: str) -> bool:
    """Return whether a write under way keeps a function locked."""
    if drivers.is_leaving(tree, address):
        return True
    return any(write.target.address == address for _name, write in _all(tree))


def resume(tree: Transaction) -> Iterator[Write]:
    """Resume all writes under way; return those that end."""
    for name, write in _all(tree):
        outcome = WriteOutcome.DONE.value
        try:
            perform(tree, write.target, write.text)
        except holders.Blocked:
            continue
        except OSError as error:
            outcome = name_of(error)
        tree.drop(f"{_PENDING}/{name}")
        if write.path:
            yield Write(write.path, write.text, outcome, write.pid)


def forget(tree: Transaction) -> None:
    """Drop all writes under way for a reboot."""
    tree.drop(_PENDING)


def _all(tree: Transaction) -> list[tuple[str, Pending]]:
    return [
        (name, records.load(Pending, tree.read(f"{_PENDING}/{name}")))
        for name in tree.list(_PENDING)
    ]
