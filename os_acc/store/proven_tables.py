# SPDX-License-Identifier: Apache-2.0

"""Tables whose rows carry a digest; used in an open transaction.

The digest of a row covers the table's name and all values with their types. It
is checked whenever a row is read, and for every row when the store is opened.
"""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Iterable
from typing import Any, Final

from os_acc.store import codec, schema


@dataclasses.dataclass(frozen=True, slots=True)
class ProvenTable:
    """A table of plain columns, with a digest per row.

    :ivar columns: all columns but the digest, in the order of the table.
    :ivar since: the first version of the schema that has the table.
    """

    name: str
    columns: tuple[str, ...]
    since: int = 1

    @property
    def listed(self) -> str:
        """All columns, as a list for an SQL statement."""
        return ", ".join((*self.columns, "digest"))

    def is_sound(self, row: tuple[Any, ...]) -> bool:
        """Return whether the digest of a row of all columns matches."""
        *values, digest = row
        return bool(digest) and codec.proof(self.name, *values) == digest

    def read(
        self,
        connection: sqlite3.Connection,
        condition: str = "TRUE",
        *arguments: object,
    ) -> list[tuple[Any, ...]]:
        """Return the values of rows, without their digests.

        :raises DecodeError: the digest of a row does not match.
        """
        version = schema.version_of(connection)
        if version < self.since:
            return []
        # A read-only store of an older version is not migrated.
        proves = version >= schema.WITH_DIGESTS
        listed = self.listed if proves else ", ".join(self.columns)
        found = connection.execute(
            f"SELECT {listed} FROM {self.name} WHERE {condition}", arguments
        ).fetchall()
        if not proves:
            return found
        if not all(map(self.is_sound, found)):
            raise codec.DecodeError(f"a row of {self.name} does not match its digest")
        return [row[:-1] for row in found]

    def put(
        self,
        connection: sqlite3.Connection,
        rows: Iterable[tuple[Any, ...]],
        *,
        keep: bool = False,
    ) -> int:
        """Insert or replace rows by key; return how many were written.

        :param keep: leave existing rows unchanged.
        """
        verb = "IGNORE" if keep else "REPLACE"
        marks = ", ".join("?" * (len(self.columns) + 1))
        return connection.executemany(
            f"INSERT OR {verb} INTO {self.name} ({self.listed}) VALUES ({marks})",
            [(*row, codec.proof(self.name, *row)) for row in rows],
        ).rowcount


META: Final = ProvenTable("meta", ("store", "epoch", "version"))
CLAIMS: Final = ProvenTable("claims", ("address", "lease"))
PROVIDERS: Final = ProvenTable("providers", ("uuid", "resource_class"))
EVENTS: Final = ProvenTable(
    "events", ("id", "at", "operation", "consumer", "address", "state", "detail")
)
TOLD: Final = ProvenTable("told", ("provider", "kind", "name"), schema.WITH_TOLD)
MADE: Final = ProvenTable("made_names", ("kind", "name", "kept"), schema.WITH_KEPT)
PLACES: Final = ProvenTable(
    "places", ("provider", "address", "key"), schema.WITH_PLACES
)
OFFERED: Final = ProvenTable("offered_by", ("provider", "plugin"), schema.WITH_PLUGINS)
RECORDED: Final = ProvenTable("recorded", ("address", "lease"), schema.WITH_RECORDED)

#: A damaged row in one of these tables makes the whole store damaged.
DECISIVE: Final = (META, CLAIMS, PROVIDERS, TOLD, MADE, PLACES, OFFERED, RECORDED)


def check(connection: sqlite3.Connection) -> None:
    """Check the digest of every row in the decisive tables.

    :raises DecodeError: the digest of a row does not match.
    """
    for table in DECISIVE:
        table.read(connection)
