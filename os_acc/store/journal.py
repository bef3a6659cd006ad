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


"""What was done, for people; nothing in os_acc decides by it."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import sqlite3

#: How many of the newest events are kept.
KEPT = 10_000

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class Operation(enum.Enum):
    """What happened to a lease."""

    ADD = "add"
    REPLACE = "replace"
    QUARANTINE = "quarantine"
    REKEY = "rekey"
    DELETE = "delete"
    DAMAGED = "damaged"
    FORGET = "forget"


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """One change of one lease.

    :ivar when: in UTC.
    :ivar operation: the value of an :class:`Operation`, of this os_acc or of
        a newer one.
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
    """Write an event into an open transaction, and let the oldest go.

    :param now: microseconds since 1970, UTC.
    """
    texts = (consumer, address, state, detail)
    connection.execute(
        "INSERT INTO events (at, operation, consumer, address, state, detail)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (now, operation.value, *(_storable(text) for text in texts)),
    )
    connection.execute(
        "DELETE FROM events WHERE id <= (SELECT max(id) FROM events) - ?", (KEPT,)
    )


def newest(connection: sqlite3.Connection, limit: int) -> tuple[Event, ...]:
    """The newest events, the latest of them last."""
    cursor = connection.execute(
        "SELECT at, operation, consumer, address, state, detail FROM"
        " (SELECT * FROM events ORDER BY id DESC LIMIT ?) ORDER BY id",
        (max(0, limit),),
    )
    return tuple(Event(_when(at), *texts) for at, *texts in cursor)


def _when(at: object) -> datetime.datetime:
    # A damaged time must not hide the events around it.
    try:
        return _EPOCH + datetime.timedelta(
            microseconds=at if isinstance(at, int) else 0
        )
    except OverflowError:
        return _EPOCH


def _storable(text: str) -> str:
    # Names of processes and files may carry bytes that are not UTF-8.
    return text.encode("utf-8", "replace").decode("utf-8")
