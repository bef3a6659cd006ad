# SPDX-License-Identifier: Apache-2.0

"""The one row about the store itself: its identity, counter and version."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from os_acc.objects.epoch import LIMIT
from os_acc.store import codec, schema
from os_acc.store.proven_tables import META


class StoreMeta(NamedTuple):
    """The row.

    :ivar store: another one for each store that was ever made.
    :ivar epoch: the number that the counter has reached.
    :ivar version: of the schema; the same as in the header of the file.
    """

    store: str
    epoch: int
    version: int


def read(connection: sqlite3.Connection) -> StoreMeta:
    """The row of a store of this version.

    :raises Unreadable: it is not as it was written, or there is another number.
    """
    found = META.read(connection)
    if len(found) != 1 or not 0 <= found[0][1] <= LIMIT:
        raise codec.DecodeError("it does not say which store it is")
    return StoreMeta(*found[0])


def set_epoch(connection: sqlite3.Connection, epoch: int) -> None:
    """Let the counter go on from a number."""
    connection.execute(
        "UPDATE meta SET epoch = ?1, digest = proof('meta', store, ?1, version)",
        (epoch,),
    )


def contradicts_header(connection: sqlite3.Connection) -> bool:
    """Whether the row proves itself, and names another version than the header.

    The row of an older store says nothing of it; that of a newer one has more.
    """
    try:
        found = connection.execute(f"SELECT {META.listed} FROM meta").fetchall()
    except sqlite3.OperationalError:
        return False
    version = schema.version_of(connection)
    return any(META.is_sound(row) and row[2] != version for row in found)
