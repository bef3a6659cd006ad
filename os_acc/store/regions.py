# SPDX-License-Identifier: Apache-2.0

"""What is known of regions, and of which nothing is; in an open transaction.

A row is proved by its digest. Where one is not, or rows may be missing, any
region may be the one that it named: all are in doubt then, but those that are
recorded as proved since.
"""

from __future__ import annotations

import enum
import json
import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

from oslo_log import log

from os_acc.objects.region import NO_DOUBTS, UnverifiedRegions
from os_acc.store import codec, schema

LOG = log.getLogger(__name__)

COLUMNS = "key, image, proved, digest"

#: No region's key: that of the row which says that rows have been lost.
_ALL = "*"


class RegionState(enum.IntEnum):
    """What the column ``proved`` says of a region, and ``image`` beside it.

    FAILED: its programming has begun with this image, and is not proved.
    PROVED: it holds this. ENTRUSTED: it did, and a guest was given the
    function through which it is programmed.
    """

    FAILED = 0
    PROVED = 1
    ENTRUSTED = 2


class RegionRow(NamedTuple):
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
            and self.proved in tuple(RegionState)
            and self == _row(self.key, self.image, RegionState(self.proved))
        )


def read(connection: sqlite3.Connection) -> UnverifiedRegions:
    """What is in doubt, by all that the store says."""
    version = schema.version_of(connection)
    if version < schema.WITH_REGIONS:
        return NO_DOUBTS
    if version < schema.WITH_PROOF:
        # Somebody only looks, and brings nothing up to date.
        found = connection.execute("SELECT key FROM unknown_regions").fetchall()
        return UnverifiedRegions(proved=frozenset()) if found else NO_DOUBTS
    rows = _rows(connection)
    sound = [row for row in rows if row.is_sound]
    failed = _keys(sound, RegionState.FAILED)
    proved = _keys(sound, RegionState.PROVED)
    all_are = _ALL in failed or len(sound) < len(rows)
    return UnverifiedRegions(
        keys=failed - {_ALL},
        guest_writable=_keys(sound, RegionState.ENTRUSTED),
        contents={str(row.key): str(row.image) for row in sound if row.key in proved},
        proved=proved if all_are else None,
    )


def doubt(connection: sqlite3.Connection, key: str, image: str) -> RegionRow | None:
    """Record that a region is about to be programmed with an image.

    :returns: what was recorded of it before.
    """
    before = _row_of(connection, key)
    _all_are(connection)
    _put(connection, _row(key, image, RegionState.FAILED))
    return before


def settle(connection: sqlite3.Connection, key: str, content: str) -> None:
    """Record what a region is proved to hold."""
    _all_are(connection)
    _put(connection, _row(key, content, RegionState.PROVED))


def entrust(connection: sqlite3.Connection, key: str) -> None:
    """Record that a guest can program a region from now on.

    Of one of which nothing is known, this says nothing new.
    """
    all_are = _all_are(connection)
    before = _row_of(connection, key)
    if before is None and all_are:
        return
    if before is None or before.proved != RegionState.FAILED:
        _put(connection, _row(key, "", RegionState.ENTRUSTED))


def recall(connection: sqlite3.Connection, key: str, before: RegionRow | None) -> None:
    """Record again what was known before a programming that never began."""
    _all_are(connection)
    if before is not None:
        _put(connection, before)
    else:
        connection.execute("DELETE FROM unknown_regions WHERE key = ?", (key,))


def tell(connection: sqlite3.Connection) -> None:
    """Log that rows do not prove themselves, where some do not."""
    if not is_sound(connection):
        LOG.error(
            "the records of some regions are damaged: no region is given out before"
            " it has been programmed anew"
        )


def is_sound(connection: sqlite3.Connection) -> bool:
    """Whether each row is what was once written."""
    return all(row.is_sound for row in _rows(connection))


def keep(
    connection: sqlite3.Connection, rows: Iterable[RegionRow], *, whole: bool
) -> None:
    """Put into a new store what a damaged one still said.

    :param rows: that are sound.
    :param whole: whether no others were there.
    """
    for row in rows:
        # What was proved then may have been in doubt since, in what is lost.
        if whole or row.proved == RegionState.FAILED:
            _put(connection, row)
    if not whole:
        _put(connection, _row(_ALL, "", RegionState.FAILED))


def _all_are(connection: sqlite3.Connection) -> bool:
    """Whether all are in doubt; then this is recorded.

    A damaged row need not have been that of the region whose row it is now,
    which may be about to take its place.
    """
    if read(connection).proved is None:
        return False
    _put(connection, _row(_ALL, "", RegionState.FAILED))
    return True


def _keys(rows: Iterable[RegionRow], state: RegionState) -> frozenset[str]:
    return frozenset(str(row.key) for row in rows if row.proved == state)


def _row_of(connection: sqlite3.Connection, key: str) -> RegionRow | None:
    """The row of a region, if it is sound."""
    return next(
        (row for row in _rows(connection) if row.key == key and row.is_sound), None
    )


def _rows(connection: sqlite3.Connection) -> list[RegionRow]:
    found = connection.execute(f"SELECT {COLUMNS} FROM unknown_regions")
    return [RegionRow(*values) for values in found]


def _put(connection: sqlite3.Connection, row: RegionRow) -> None:
    connection.execute(
        "INSERT OR REPLACE INTO unknown_regions VALUES (?, ?, ?, ?)", row
    )


def _row(key: str, image: str, state: RegionState) -> RegionRow:
    text = json.dumps([key, image, int(state)])
    return RegionRow(key, image, int(state), codec.digest(text))
