# SPDX-License-Identifier: Apache-2.0

"""The log of changes, for operators; os_acc makes no decision by it."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import sqlite3

from os_acc.store.schema import EVENTS

#: Number of newest events that are kept; each commit writes them all.
KEPT = 2_000

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Operation(enum.Enum):
    """The kind of a change."""

    ADD = "add"
    REPLACE = "replace"
    QUARANTINE = "quarantine"
    REKEY = "rekey"
    DELETE = "delete"
    ERASE = "erase"
    DAMAGED = "damaged"
    FORGET = "forget"
    RESTORE = "restore"


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """One change of one lease.

    :ivar when: time of the change, in UTC.
    :ivar operation: value of an :class:`Operation`, of this os_acc or a newer
        one.
    """

    when: datetime.datetime
    operation: str
    consumer: str
    address: str
    state: str
    detail: str


def record(
    connection: sqlite3.Connection,
    now: int,
    operation: Operation,
    *,
    consumer: str = "",
    address: str = "",
    state: str = "",
    detail: str = "",
) -> None:
    """Write an event in an open transaction, and remove the oldest ones.

    :param now: microseconds since 1970, UTC.
    """
    # Names of processes and files may carry bytes that are not UTF-8.
    texts = [
        each.encode("utf-8", "replace").decode("utf-8")
        for each in (consumer, address, state, detail)
    ]
    (number,) = connection.execute(
        "SELECT coalesce(max(id), 0) + 1 FROM events"
    ).fetchone()
    EVENTS.put(connection, [(number, now, operation.value, *texts)])
    connection.execute("DELETE FROM events WHERE id <= ?", (number - KEPT,))


def newest(connection: sqlite3.Connection, limit: int) -> tuple[Event, ...]:
    """Return the newest intact events, in chronological order."""
    found, _ = EVENTS.rows(
        connection, "id IN (SELECT id FROM events ORDER BY id DESC LIMIT ?)", limit
    )
    return tuple(Event(_when(at), *texts) for _, at, *texts in found)


def _when(at: int) -> datetime.datetime:
    # The clock may have been set to any time.
    try:
        return _EPOCH + datetime.timedelta(microseconds=at)
    except OverflowError:
        return _EPOCH
