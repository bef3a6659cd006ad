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

A row that is lost costs little: a trait of ours then counts as an operator's,
and a name stays. One that is damaged names what nobody has.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from types import MappingProxyType

from os_acc.objects.told import NOTHING, Kind, Name, Told
from os_acc.store import schema

# The first version of the schema that has the tables.
_SINCE = 4


def read(connection: sqlite3.Connection) -> Told:
    """All that was told."""
    if schema.version_of(connection) < _SINCE:
        return NOTHING
    traits: defaultdict[str, set[str]] = defaultdict(set)
    for provider, trait in connection.execute("SELECT * FROM told_traits"):
        traits[provider].add(trait)
    made = connection.execute("SELECT * FROM made_names")
    kinds = {each.value: each for each in Kind}
    return Told(
        MappingProxyType({each: frozenset(names) for each, names in traits.items()}),
        frozenset(Name(kinds[kind], text) for kind, text in made if kind in kinds),
    )


def change(connection: sqlite3.Connection, more: Told, gone: Told) -> None:
    """Record what is told from now on, and what is not any more."""
    connection.executemany(
        "DELETE FROM told_traits WHERE provider = ? AND trait = ?", gone.pairs()
    )
    connection.executemany(
        "DELETE FROM made_names WHERE kind = ? AND name = ?", _rows(gone)
    )
    connection.executemany(
        "INSERT OR IGNORE INTO told_traits VALUES (?, ?)", more.pairs()
    )
    connection.executemany(
        "INSERT OR IGNORE INTO made_names VALUES (?, ?)", _rows(more)
    )


def _rows(told: Told) -> list[tuple[str, str]]:
    return [(name.kind.value, name.text) for name in told.made]
