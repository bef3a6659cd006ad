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


"""Of which regions nothing is known; in an open transaction, no policy here.

A row is proved by its digest. Where one is not, or rows may be missing, any
region may be the one that it named: all are in doubt then, but those that are
recorded as proved since.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

from os_acc.objects.region import NO_DOUBTS, Doubts
from os_acc.store import codec, schema

COLUMNS = "key, image, proved, digest"

#: No region's key: that of the row which says that rows have been lost.
_ALL = "*"


class Row(NamedTuple):
    """One row as SQLite gives it; in a damaged file, anything may be in it."""

    key: object
    image: object
    proved: object
    digest: object

    @property
    def is_sound(self) -> bool:
        """Whether it is what was once written."""
        return (
            isinstance(self.key, str)
            and isinstance(self.image, str)
            and isinstance(self.proved, int)
            and self == _row(self.key, self.image, proved=bool(self.proved))
        )


def read(connection: sqlite3.Connection) -> Doubts:
    """What is in doubt, by all that the store says."""
    version = schema.version_of(connection)
    if version < schema.WITH_REGIONS:
        return NO_DOUBTS
    if version < schema.WITH_PROOF:
        # Somebody only looks, and brings nothing up to date.
        found = connection.execute("SELECT key FROM unknown_regions").fetchall()
        return Doubts(proved=frozenset()) if found else NO_DOUBTS
    rows = _rows(connection)
    sound = [row for row in rows if row.is_sound]
    named = frozenset(str(row.key) for row in sound if not row.proved)
    proved = frozenset(str(row.key) for row in sound if row.proved)
    all_are = _ALL in named or len(sound) < len(rows)
    return Doubts(named - {_ALL}, proved if all_are else None)


def doubt(connection: sqlite3.Connection, key: str, image: str) -> None:
    """Record that a region is about to be programmed with an image."""
    _all_are(connection)
    _put(connection, _row(key, image, proved=False))


def settle(connection: sqlite3.Connection, key: str) -> None:
    """Record that a region is proved to hold what it should."""
    if _all_are(connection):
        _put(connection, _row(key, "", proved=True))
    else:
        connection.execute("DELETE FROM unknown_regions WHERE key = ?", (key,))


def is_sound(connection: sqlite3.Connection) -> bool:
    """Whether each row is what was once written."""
    return all(row.is_sound for row in _rows(connection))


def keep(connection: sqlite3.Connection, rows: Iterable[Row], *, whole: bool) -> None:
    """Put into a new store what a damaged one still said.

    :param rows: that are sound.
    :param whole: whether no others were there.
    """
    for row in rows:
        # What was proved then may have been in doubt since, in what is lost.
        if whole or not row.proved:
            _put(connection, row)
    if not whole:
        _put(connection, _row(_ALL, "", proved=False))


def _all_are(connection: sqlite3.Connection) -> bool:
    """Whether all are in doubt; then this is recorded.

    A damaged row need not have been that of the region whose row it is now,
    which may be about to take its place.
    """
    if read(connection).proved is None:
        return False
    _put(connection, _row(_ALL, "", proved=False))
    return True


def _rows(connection: sqlite3.Connection) -> list[Row]:
    found = connection.execute(f"SELECT {COLUMNS} FROM unknown_regions")
    return [Row(*values) for values in found]


def _put(connection: sqlite3.Connection, row: Row) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO unknown_regions VALUES (?, ?, ?, ?)", row
    )


def _row(key: str, image: str, *, proved: bool) -> Row:
    return Row(key, image, int(proved), codec.digest(json.dumps([key, image, proved])))
