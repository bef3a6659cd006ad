# SPDX-License-Identifier: Apache-2.0

"""The store's file, as others come by it."""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3
import uuid
from collections.abc import Callable

from os_acc.objects.lease import Lease
from os_acc.objects.naming import ProviderOrigin
from os_acc.objects.pci import PciAddress
from os_acc.objects.published import NameKind, PlacementName, PublishedNames
from os_acc.store import Store, schema


def file_in(state_path: str) -> pathlib.Path:
    """Where a store is."""
    return pathlib.Path(state_path, "os_acc.sqlite")


def execute(file: pathlib.Path, *statements: str) -> None:
    """Somebody opens the store with a tool of his."""
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        schema.teach(connection)
        for statement in statements:
            connection.execute(statement)


def set_epoch(file: pathlib.Path, epoch: int) -> None:
    """Set the counter of a store, as the store itself would."""
    execute(
        file,
        f"UPDATE meta SET epoch = {epoch},"
        f" digest = proof('meta', store, {epoch}, version)",
    )


def downgrade(file: pathlib.Path, version: int) -> None:
    """Make a store what one of an older version of the schema had been."""
    newer = file.rename(file.with_name("newer"))
    with contextlib.closing(sqlite3.connect(file)) as old:
        schema.teach(old)
        for statement in (each for step in schema.STEPS[:version] for each in step):
            old.execute(statement)
        tables = old.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        names = [name for (name,) in tables]
        old.commit()
        old.execute("ATTACH ? AS newer", (str(newer),))
        for table in names:
            described = old.execute(f"PRAGMA table_info({table})").fetchall()
            columns = ", ".join(row[1] for row in described)
            old.execute(f"DELETE FROM {table}")
            old.execute(
                f"INSERT INTO {table} ({columns}) SELECT {columns} FROM newer.{table}"
            )
        if version >= schema.WITH_DIGESTS:
            old.execute(
                "UPDATE meta SET version = ?1,"
                " digest = proof('meta', store, epoch, ?1)",
                (version,),
            )
        old.execute(f"PRAGMA application_id = {schema.APPLICATION_ID}")
        old.execute(f"PRAGMA user_version = {version}")
        old.commit()
    newer.unlink()


def fill(store: Store, make_lease: Callable[[int], Lease]) -> Lease:
    """Write a row into each table of plain columns."""
    (lease,) = store.add([make_lease(1)])
    place = ProviderOrigin(PciAddress(0, 0x3B, 0, 0), "a card")
    store.remember_providers(
        {"provider": "CUSTOM_ACCELERATOR_NIC"}, {"card": place}, {"provider": "acme"}
    )
    name = PlacementName(NameKind.TRAIT, "CUSTOM_FAST")
    store.change_published(
        PublishedNames.of_mapping(
            {"provider": frozenset({name})}, frozenset({name}), {name: 5}
        )
    )
    store.keep_recorded(
        {PciAddress(0, 0x3C, 0, 0): str(uuid.uuid4())}, store.standing().store
    )
    return lease


def set_version(file: pathlib.Path, version: int) -> None:
    """Make a store one of another version of the schema, with the same tables."""
    execute(
        file,
        f"PRAGMA user_version = {version}",
        f"UPDATE meta SET version = {version},"
        f" digest = proof('meta', store, epoch, {version})",
    )


def reopened(state_path: str) -> Store:
    """The store as the next service has it."""
    return Store.open(state_path, busy_timeout=30)
