# SPDX-License-Identifier: Apache-2.0

"""The file of a store: its contents, its version, and a synthetic upgrade."""

from __future__ import annotations

import contextlib
import io
import pathlib
import sqlite3
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from os_acc.objects.lease import Lease, LeaseState
from os_acc.objects.mdev import MdevType
from os_acc.objects.pci import PciAddress
from os_acc.objects.provider_names import ProviderOrigin
from os_acc.objects.records import NameKind, PlacementName, PublishedNames
from os_acc.store import Store, codec, records, schema
from os_acc.testing import TestHost

#: A synthetic step from version 1 to 2: new column, new digests, new table.
STEP = (
    "ALTER TABLE events ADD COLUMN actor TEXT NOT NULL DEFAULT ''",
    "UPDATE providers SET digest ="
    " row_digest('providers', uuid, resource_class) WHERE TRUE",
    "CREATE TABLE upgrades (id INTEGER PRIMARY KEY, text TEXT NOT NULL)",
    "INSERT INTO upgrades (text) VALUES (hex(zeroblob(8000)))",
)


def set_steps(monkeypatch: pytest.MonkeyPatch, *more: tuple[str, ...]) -> None:
    """Add steps to the schema that this process knows."""
    monkeypatch.setattr(schema, "STEPS", (*schema.STEPS, *more))


def unlearn(older: pytest.MonkeyPatch, state: LeaseState) -> None:
    """Make this process a version that does not know a state of leases."""
    decode = codec.decode

    def read(kind: Any, value: Any) -> Any:
        if kind is Lease and value["state"] == state.value:
            raise ValueError(f"{state.value!r} is not a valid LeaseState")
        return decode(kind, value)

    older.setattr(codec, "decode", read)
    # The older version is another process.
    records.lease_of.cache_clear()


def file_in(state_path: str) -> pathlib.Path:
    """Return the path of the store below a state directory."""
    return pathlib.Path(state_path, "os_acc.sqlite")


def execute(file: pathlib.Path, *statements: str) -> None:
    """Run SQL statements on a store, as an operator's tool would."""
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        connection.create_function("row_digest", -1, schema.row_digest)
        for statement in statements:
            connection.execute(statement)


def rows(file: pathlib.Path, statement: str) -> list[tuple[object, ...]]:
    """Return the rows that one SQL query finds in a store."""
    with contextlib.closing(sqlite3.connect(file)) as connection:
        return connection.execute(statement).fetchall()


def set_epoch(file: pathlib.Path, epoch: int) -> None:
    """Set the counter of a store, as the store itself would."""
    execute(
        file,
        f"UPDATE meta SET epoch = {epoch},"
        f" digest = row_digest('meta', store, {epoch}, version)",
    )


def fill(store: Store, make_lease: Callable[[int], Lease]) -> Lease:
    """Write a row into each table of plain columns."""
    (lease,) = store.add([make_lease(1)])
    place = ProviderOrigin(PciAddress(0, 0x3B, 0, 0), "a card")
    store.record_providers(
        {"provider": "CUSTOM_ACCELERATOR_NIC"},
        {"card": place},
        {"provider": "acme"},
        {MdevType("mtty", "mtty-1"): 24},
    )
    name = PlacementName(NameKind.TRAIT, "CUSTOM_FAST")
    store.change_published_names(
        PublishedNames({"provider": frozenset({name})}, frozenset({name}), {name: 5})
    )
    store.record_helper_claims(
        {PciAddress(0, 0x3C, 0, 0): str(uuid.uuid4())}, store.recorded_state().store
    )
    return lease


def set_version(file: pathlib.Path, version: int) -> None:
    """Record another version of the schema, with the same tables."""
    execute(
        file,
        f"PRAGMA user_version = {version}",
        f"UPDATE meta SET version = {version},"
        f" digest = row_digest('meta', store, epoch, {version})",
    )


def reopened(state_path: str) -> Store:
    """Open a store again, as a restarted service does."""
    return Store.open(state_path, busy_timeout=30)


def opened_halfway(check: Callable[[int], None]) -> Callable[[int, str], io.IOBase]:
    """Return an ``open`` whose files call ``check`` in the middle of each write(2)."""

    class File(io.FileIO):
        def write(self, content: Any, /) -> int:
            half = super().write(content[: len(content) // 2])
            check(self.fileno())
            return half + super().write(content[half:])

    return lambda descriptor, mode: io.BufferedWriter(File(descriptor, mode))


def lose_store(host: TestHost) -> None:
    """Remove the store, and start the service again."""
    for each in pathlib.Path(host.state_path).glob("os_acc.sqlite*"):
        each.unlink()
    host.restart()
