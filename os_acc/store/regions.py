# SPDX-License-Identifier: Apache-2.0

"""Records of region contents; used in an open transaction.

Each row carries a digest. If one does not match, or rows may be missing, the lost
record may concern any region: all regions then count as unverified, except those
that were verified afterwards.
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

#: Pseudo-key of the row that marks records as lost.
_ALL = "*"


class RegionState(enum.IntEnum):
    """The values of the column ``proved``.

    FAILED: programming has begun with the image in ``image``, and the result is
    unverified. PROVED: the region holds ``image``, verified. ENTRUSTED: the region
    was verified, but its programming function was then attached to a guest.
    """

    FAILED = 0
    PROVED = 1
    ENTRUSTED = 2


class RegionRow(NamedTuple):
    """One raw row; in a damaged file, the values may be anything."""

    key: object
    image: object
    proved: object
    digest: object

    @property
    def is_sound(self) -> bool:
        """Whether the digest matches."""
        return (
            isinstance(self.key, str)
            and isinstance(self.image, str)
            and isinstance(self.proved, int)
            and self.proved in tuple(RegionState)
            and self == _row(self.key, self.image, RegionState(self.proved))
        )


def read(connection: sqlite3.Connection) -> UnverifiedRegions:
    """Return the unverified regions, according to all records."""
    version = schema.version_of(connection)
    if version < schema.WITH_REGIONS:
        return NO_DOUBTS
    if version < schema.WITH_PROOF:
        # A read-only store of an older version is not migrated.
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
    """Record that programming of a region with an image is about to begin.

    :returns: the previous record.
    """
    before = _row_of(connection, key)
    _all_are(connection)
    _put(connection, _row(key, image, RegionState.FAILED))
    return before


def settle(connection: sqlite3.Connection, key: str, content: str) -> None:
    """Record the verified contents of a region."""
    _all_are(connection)
    _put(connection, _row(key, content, RegionState.PROVED))


def entrust(connection: sqlite3.Connection, key: str) -> None:
    """Record that a guest can program a region from now on.

    The record of a region that is already unverified stays unchanged.
    """
    all_are = _all_are(connection)
    before = _row_of(connection, key)
    if before is None and all_are:
        return
    if before is None or before.proved != RegionState.FAILED:
        _put(connection, _row(key, "", RegionState.ENTRUSTED))


def recall(connection: sqlite3.Connection, key: str, before: RegionRow | None) -> None:
    """Restore the record of a region whose programming never began."""
    _all_are(connection)
    if before is not None:
        _put(connection, before)
    else:
        connection.execute("DELETE FROM unknown_regions WHERE key = ?", (key,))


def tell(connection: sqlite3.Connection) -> None:
    """Log an error if records of regions are damaged."""
    if not is_sound(connection):
        LOG.error(
            "The records of some regions are damaged; no region is offered before it"
            " has been programmed again"
        )


def is_sound(connection: sqlite3.Connection) -> bool:
    """Return whether the digest of each row matches."""
    return all(row.is_sound for row in _rows(connection))


def keep(
    connection: sqlite3.Connection, rows: Iterable[RegionRow], *, whole: bool
) -> None:
    """Copy the intact records of a damaged store into a new one.

    :param rows: intact rows.
    :param whole: whether no other rows existed.
    """
    for row in rows:
        # A later record, now lost, may have made a verified region unverified.
        if whole or row.proved == RegionState.FAILED:
            _put(connection, row)
    if not whole:
        _put(connection, _row(_ALL, "", RegionState.FAILED))


def _all_are(connection: sqlite3.Connection) -> bool:
    """Return whether all regions are unverified; if so, record it.

    The record precedes any change of a row: a damaged row may have belonged to
    another region, and may be overwritten next.
    """
    if read(connection).proved is None:
        return False
    _put(connection, _row(_ALL, "", RegionState.FAILED))
    return True


def _keys(rows: Iterable[RegionRow], state: RegionState) -> frozenset[str]:
    return frozenset(str(row.key) for row in rows if row.proved == state)


def _row_of(connection: sqlite3.Connection, key: str) -> RegionRow | None:
    """Return the row of a region, if it is intact."""
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
