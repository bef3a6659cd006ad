# SPDX-License-Identifier: Apache-2.0

"""The metadata row of the store: its identity, epoch counter and version."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from os_acc.objects.epoch import LIMIT
from os_acc.store import codec, schema
from os_acc.store.proven_tables import META


class StoreMeta(NamedTuple):
    """The metadata row.

    :ivar store: identity, different for each store ever created.
    :ivar epoch: the last value of the counter.
    :ivar version: version of the schema; the same as in the header of the file.
    """

    store: str
    epoch: int
    version: int


def read(connection: sqlite3.Connection) -> StoreMeta:
    """Return the metadata row of a store of the current version.

    :raises DecodeError: the row is damaged, missing or not unique.
    """
    found = META.read(connection)
    if len(found) != 1 or not 0 <= found[0][1] <= LIMIT:
        raise codec.DecodeError("it does not say which store it is")
    return StoreMeta(*found[0])


def set_epoch(connection: sqlite3.Connection, epoch: int) -> None:
    """Set the epoch counter."""
    connection.execute(
        "UPDATE meta SET epoch = ?1, digest = proof('meta', store, ?1, version)",
        (epoch,),
    )


def contradicts_header(connection: sqlite3.Connection) -> bool:
    """Return whether an intact row names another version than the header.

    An older schema does not record the version; a newer one has more columns.
    """
    try:
        found = connection.execute(f"SELECT {META.listed} FROM meta").fetchall()
    except sqlite3.OperationalError:
        return False
    version = schema.version_of(connection)
    return any(META.is_sound(row) and row[2] != version for row in found)
