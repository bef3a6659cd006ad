# SPDX-License-Identifier: Apache-2.0

"""What Placement was told; in an open transaction, no policy here.

A row that is lost costs little: what it names then counts as somebody else's,
and stays.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict

from os_acc.objects.published import NameKind, PlacementName, PublishedNames
from os_acc.store.proof import MADE, TOLD

_KINDS = {each.value: each for each in NameKind}


def read(connection: sqlite3.Connection) -> PublishedNames:
    """All that was told."""
    given: defaultdict[str, set[PlacementName]] = defaultdict(set)
    for provider, kind, text in TOLD.read(connection):
        if kind in _KINDS:
            given[provider].add(PlacementName(_KINDS[kind], text))
    made = {
        PlacementName(_KINDS[kind], text): at
        for kind, text, at in MADE.read(connection)
        if kind in _KINDS
    }
    return PublishedNames.of_mapping(
        {each: frozenset(names) for each, names in given.items()},
        frozenset(made),
        {name: at for name, at in made.items() if at},
    )


def change(
    connection: sqlite3.Connection, more: PublishedNames, gone: PublishedNames
) -> None:
    """Record what is told from now on, and what is not any more."""
    connection.executemany(
        "DELETE FROM told WHERE provider = ? AND kind = ? AND name = ?", gone.rows()
    )
    connection.executemany(
        "DELETE FROM made_names WHERE kind = ? AND name = ?", _made(gone)
    )
    TOLD.put(connection, more.rows(), keep=True)
    MADE.put(connection, [(*name, 0) for name in _made(more)], keep=True)
    ours = {(kind, text) for kind, text, _ in MADE.read(connection)}
    kept = [(name.kind.value, name.text, at) for name, at in more.kept.items()]
    MADE.put(connection, [row for row in kept if row[:2] in ours])


def _made(told: PublishedNames) -> list[tuple[str, str]]:
    return [(name.kind.value, name.text) for name in told.made]
