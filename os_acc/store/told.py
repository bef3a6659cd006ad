# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#      http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.


"""What Placement was told; in an open transaction, no policy here.

A row that is lost costs little: what it names then counts as somebody else's,
and stays. One that is damaged names what nobody has.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict

from os_acc.objects.told import NOTHING, Kind, Name, Told
from os_acc.store import schema

GIVEN, MADE = "provider, kind, name", "kind, name"

_KINDS = {each.value: each for each in Kind}


def read(connection: sqlite3.Connection) -> Told:
    """All that was told."""
    if schema.version_of(connection) < schema.WITH_TOLD:
        return NOTHING
    given: defaultdict[str, set[Name]] = defaultdict(set)
    for provider, kind, text in connection.execute(f"SELECT {GIVEN} FROM told"):
        if kind in _KINDS:
            given[provider].add(Name(_KINDS[kind], text))
    kept = "kept" if schema.version_of(connection) >= schema.WITH_KEPT else "0"
    made = {
        Name(_KINDS[kind], text): at
        for kind, text, at in connection.execute(
            f"SELECT {MADE}, {kept} FROM made_names"
        )
        if kind in _KINDS
    }
    return Told.of_mapping(
        {each: frozenset(names) for each, names in given.items()},
        frozenset(made),
        {name: at for name, at in made.items() if isinstance(at, int) and at},
    )


def change(connection: sqlite3.Connection, more: Told, gone: Told) -> None:
    """Record what is told from now on, and what is not any more."""
    connection.executemany(
        "DELETE FROM told WHERE provider = ? AND kind = ? AND name = ?", gone.rows()
    )
    connection.executemany(
        "DELETE FROM made_names WHERE kind = ? AND name = ?", _made(gone)
    )
    connection.executemany("INSERT OR IGNORE INTO told VALUES (?, ?, ?)", more.rows())
    connection.executemany(
        f"INSERT OR IGNORE INTO made_names ({MADE}) VALUES (?, ?)", _made(more)
    )
    connection.executemany(
        "UPDATE made_names SET kept = ? WHERE kind = ? AND name = ?",
        [(at, name.kind.value, name.text) for name, at in more.kept.items()],
    )


def _made(told: Told) -> list[tuple[str, str]]:
    return [(name.kind.value, name.text) for name in told.made]
