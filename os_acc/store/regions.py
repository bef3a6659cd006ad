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

from os_acc.objects.region import RecordedImage, UnverifiedRegions
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


def text_of(image: RecordedImage) -> str:
    """Return an image as in a row."""
    return json.dumps([image.id, image.hash_algo, image.hash_value])


def read(connection: sqlite3.Connection) -> UnverifiedRegions:
    """Return the unverified regions, according to all records."""
    rows, are_lost = _rows(connection)
    verified = {
        row.key: row.contents for row in rows if row.state == RegionState.VERIFIED
    }
    return UnverifiedRegions(
        keys=_keys(rows, RegionState.UNVERIFIED),
        guest_writable=_keys(rows, RegionState.GUEST_WRITABLE),
        contents=verified,
        verified_since_loss=frozenset(verified) if are_lost else None,
        images={
            row.key: RecordedImage(*json.loads(row.image)) for row in rows if row.image
        },
    )


def log_damage(connection: sqlite3.Connection) -> None:
    """Log an error if records of regions are damaged."""
    if REGIONS.rows(connection)[1]:
        LOG.error(
            "Records of region contents are damaged; no region is offered until it has"
            " been programmed again"
        )


def mark_lost(connection: sqlite3.Connection) -> None:
    """Record that records may be missing: all regions are unverified."""
    put(connection, _ALL_REGIONS, "", RegionState.UNVERIFIED)


def before_change(
    connection: sqlite3.Connection, key: str
) -> tuple[RegionRow | None, str, bool]:
    """Return the intact row of a region, its image, and whether records were lost.

    A loss is recorded first: all regions are unverified. A damaged row may have
    belonged to another region, and may be overwritten next.
    """
    rows, are_lost = _rows(connection)
    if are_lost:
        mark_lost(connection)
    before = next((row for row in rows if row.key == key), None)
    return before, before.image if before else "", are_lost


def _keys(rows: Iterable[RegionRow], state: RegionState) -> frozenset[str]:
    return frozenset(row.key for row in rows if row.state == state)


def _rows(connection: sqlite3.Connection) -> tuple[list[RegionRow], bool]:
    """Return the intact rows of regions, and whether records were lost."""
    intact, damaged = REGIONS.rows(connection)
    rows = [RegionRow(*each) for each in intact if each[0] != _ALL_REGIONS]
    return rows, bool(damaged) or len(rows) < len(intact)


def put(
    connection: sqlite3.Connection, key: str, contents: str, state: int, image: str = ""
) -> None:
    """Write the record of a region."""
    REGIONS.put(connection, [(key, contents, int(state), image)])


def delete(connection: sqlite3.Connection, key: str) -> None:
    """Remove the record of a region."""
    connection.execute("DELETE FROM regions WHERE key = ?", (key,))
