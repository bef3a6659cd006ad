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

from os_acc.objects.region import RecordedImage, UnverifiedRegions, card_key_of
from os_acc.store.schema import REGIONS

LOG = log.getLogger(__name__)

#: Pseudo-key of the row that marks records as lost.
_ALL_REGIONS = "*"


class RegionState(enum.IntEnum):
    """The values of the column ``state``.

    UNVERIFIED: programming has begun with the image in ``contents``, and the result
    is unverified. VERIFIED: the region holds ``contents``. GUEST_WRITABLE: the
    region was verified, but its programming function was then attached to a guest.
    """

    UNVERIFIED = 0
    VERIFIED = 1
    GUEST_WRITABLE = 2


class RegionRow(NamedTuple):
    """One intact row.

    ``image`` is the image with which os_acc last programmed and verified the region:
    a JSON list of its id, hash algorithm and hash; '' if there is none.
    """

    key: str
    contents: str
    state: int
    image: str = ""


def read(connection: sqlite3.Connection) -> UnverifiedRegions:
    """Return the unverified regions, according to all records."""
    intact, is_damaged = _rows(connection)
    unverified = _keys(intact, RegionState.UNVERIFIED)
    verified = {
        row.key: row.contents for row in intact if row.state == RegionState.VERIFIED
    }
    all_are = _ALL_REGIONS in unverified or is_damaged
    return UnverifiedRegions(
        keys=unverified - {_ALL_REGIONS},
        guest_writable=_keys(intact, RegionState.GUEST_WRITABLE),
        contents=verified,
        verified_since_loss=frozenset(verified) if all_are else None,
        images={
            row.key: RecordedImage(*json.loads(row.image))
            for row in intact
            if row.image
        },
    )


def mark_unverified(
    connection: sqlite3.Connection, key: str, image: str
) -> RegionRow | None:
    """Record that programming of a region with an image is about to begin.

    :returns: the previous record.
    """
    before = _row_of(connection, key)
    _mark_all_if_lost(connection)
    _put(connection, key, image, RegionState.UNVERIFIED, _image_of(before))
    return before


def mark_verified(
    connection: sqlite3.Connection,
    key: str,
    contents: str,
    image: RecordedImage | None = None,
) -> None:
    """Record the verified contents of a region.

    :param image: the image with which it was programmed; None: the recorded one stays.
    """
    _mark_all_if_lost(connection)
    text = _image_of(_row_of(connection, key)) if image is None else _text(image)
    _put(connection, key, contents, RegionState.VERIFIED, text)
    # A card that a guest has as a whole has one region.
    connection.execute("DELETE FROM regions WHERE key = ?", (card_key_of(key),))


def mark_guest_writable(connection: sqlite3.Connection, key: str) -> None:
    """Record that a guest can program a region from now on.

    The record of a region that is already unverified stays unchanged.
    """
    are_lost = _mark_all_if_lost(connection)
    before = _row_of(connection, key)
    if before is None and are_lost:
        return
    if before is None or before.state != RegionState.UNVERIFIED:
        _put(connection, key, "", RegionState.GUEST_WRITABLE, _image_of(before))


def restore(connection: sqlite3.Connection, key: str, before: RegionRow | None) -> None:
    """Restore the record of a region whose programming never began."""
    _mark_all_if_lost(connection)
    if before is not None:
        _put(connection, *before)
    else:
        connection.execute("DELETE FROM regions WHERE key = ?", (key,))


def log_damage(connection: sqlite3.Connection) -> None:
    """Log an error if records of regions are damaged."""
    if not are_intact(connection):
        LOG.error(
            "Records of region contents are damaged; no region is offered until it has"
            " been programmed again"
        )


def are_intact(connection: sqlite3.Connection) -> bool:
    """Return whether the digest of each row matches."""
    return not _rows(connection)[1]


def copy(
    connection: sqlite3.Connection, rows: Iterable[RegionRow], *, complete: bool
) -> None:
    """Copy the intact records of a damaged store into a new one.

    :param rows: intact rows.
    :param complete: whether no other rows existed.
    """
    for row in rows:
        # A later record, now lost, may have made a verified region unverified.
        if complete or row.state == RegionState.UNVERIFIED:
            _put(connection, *row)
        elif row.image:
            _put(connection, row.key, "", RegionState.UNVERIFIED, row.image)
    if not complete:
        _put(connection, _ALL_REGIONS, "", RegionState.UNVERIFIED)


def _mark_all_if_lost(connection: sqlite3.Connection) -> bool:
    """Return whether records were lost; if so, record all regions as unverified.

    The record precedes any change of a row: a damaged row may have belonged to
    another region, and may be overwritten next.
    """
    if read(connection).verified_since_loss is None:
        return False
    _put(connection, _ALL_REGIONS, "", RegionState.UNVERIFIED)
    return True


def _keys(rows: Iterable[RegionRow], state: RegionState) -> frozenset[str]:
    return frozenset(row.key for row in rows if row.state == state)


def _row_of(connection: sqlite3.Connection, key: str) -> RegionRow | None:
    """Return the row of a region, if it is intact."""
    return next((row for row in _rows(connection)[0] if row.key == key), None)


def _rows(connection: sqlite3.Connection) -> tuple[list[RegionRow], bool]:
    """Return the intact rows, and whether another one is damaged."""
    found = connection.execute(f"SELECT {REGIONS.listed} FROM regions").fetchall()
    intact = [RegionRow(*values[:-1]) for values in found if REGIONS.is_intact(values)]
    return intact, len(intact) < len(found)


def _put(
    connection: sqlite3.Connection, key: str, contents: str, state: int, image: str = ""
) -> None:
    REGIONS.put(connection, [(key, contents, int(state), image)])


def _image_of(row: RegionRow | None) -> str:
    return "" if row is None else row.image


def _text(image: RecordedImage) -> str:
    return json.dumps([image.id, image.hash_algo, image.hash_value])
