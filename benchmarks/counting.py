# SPDX-License-Identifier: Apache-2.0

"""Count the helper calls and store transactions of one call of the library."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
from collections.abc import Iterator
from typing import Any
from unittest import mock

from oslo_privsep import comm

from benchmarks.rows import Aim, Count

_ROUND_TRIPS = Aim(2)


@dataclasses.dataclass(slots=True)
class Counted:
    """The events counted in a block.

    :ivar fsyncs: None if they cannot be observed.
    """

    round_trips: int = 0
    transactions: int = 0
    fsyncs: int | None = None

    def table_counts(self, devices: int) -> tuple[Count, ...]:
        """Return the counts for the table; the aim applies to one device."""
        aim = _ROUND_TRIPS if devices == 1 else None
        table_counts = (
            Count("round trips", self.round_trips, aim),
            Count("transactions", self.transactions),
        )
        if self.fsyncs is None:
            return table_counts
        return (*table_counts, Count("fsyncs", self.fsyncs))


@contextlib.contextmanager
def counting() -> Iterator[Counted]:
    """Count the events of this process until the end of the block."""
    counted = Counted()
    with _round_trips(counted), _transactions(counted):
        yield counted


@contextlib.contextmanager
def _round_trips(counted: Counted) -> Iterator[None]:
    real = comm.ClientChannel.send_recv

    def send_recv(channel: comm.ClientChannel, *args: Any, **more: Any) -> Any:
        counted.round_trips += 1
        return real(channel, *args, **more)

    with mock.patch.object(comm.ClientChannel, "send_recv", send_recv):
        yield


@contextlib.contextmanager
def _transactions(counted: Counted) -> Iterator[None]:
    real = sqlite3.connect

    def note(statement: str) -> None:
        counted.transactions += statement.startswith("BEGIN")

    def connect(*args: Any, **more: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = real(*args, **more)
        connection.set_trace_callback(note)
        return connection

    with mock.patch.object(sqlite3, "connect", connect):
        yield
