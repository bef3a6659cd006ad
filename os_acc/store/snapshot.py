# SPDX-License-Identifier: Apache-2.0

"""The recorded state as one value, and the rows of published names.

Opening a :class:`os_acc.store.leases.Store` creates missing files and lock files, and
replaces a damaged store. :func:`read` does none of this; an older schema is upgraded in
memory alone.

A lost row of published names makes the name count as foreign, and it stays in
Placement. A lost row of an origin costs a provider its name where cards share a serial
number. A lost row of a plugin lets another plugin offer a device while its own plugin
fails. A lost total of mediated devices is counted again, without the units that others
use, until none of them exists.
"""

from __future__ import annotations

import dataclasses
import sqlite3
from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

from os_acc.objects.accelerator_request import AcceleratorRequest
from os_acc.objects.lease import Lease
from os_acc.objects.mdev import MdevType
from os_acc.objects.pci import PciAddress
from os_acc.objects.provider_names import ProviderOrigin
from os_acc.objects.records import (
    NO_NAMES,
    NameKind,
    PlacementName,
    PublishedNames,
    RecordedState,
)
from os_acc.store import journal, records, regions, schema
from os_acc.store.database import Database
from os_acc.store.errors import StoreDamaged
from os_acc.store.journal import Event
from os_acc.store.schema import CREATED_NAMES, PUBLISHED_NAMES

_State = TypeVar("_State", bound=RecordedState)
_KINDS = {each.value: each for each in NameKind}


@dataclasses.dataclass(frozen=True, slots=True)
class StoreSnapshot(RecordedState):
    """The contents of a store; empty if there is no store yet.

    :ivar damaged_files: damaged stores that were set aside.
    :ivar published_names: the names that os_acc published in Placement.
    :ivar requests: accelerator requests made from device profiles, with their
        leases.
    :ivar events: the events that were requested, in chronological order.
    """

    damaged_files: tuple[str, ...] = ()
    published_names: PublishedNames = NO_NAMES
    requests: tuple[AcceleratorRequest, ...] = ()
    events: tuple[Event, ...] = ()


def read(state_path: str, *, events: int = 0) -> StoreSnapshot:
    """Return the current contents of the store below a state directory.

    :param events: number of the newest events to read as well.
    :raises StoreDamaged: the store is damaged; it is left in place.
    :raises StateUnavailable: the store cannot be read.
    """
    database = Database(state_path)
    image = database.read()
    if image is None:
        return StoreSnapshot(damaged_files=database.damaged)
    try:
        with schema.opened(image, database.path) as connection:
            schema.check(connection, database.path)
            leases, damaged = records.load(connection)
            for row, why in damaged:
                records.set_aside(connection, row, why)
            made = records.select_requests(connection)
            return recorded_state(
                StoreSnapshot,
                connection,
                leases,
                damaged_files=database.damaged,
                published_names=read_published_names(connection),
                requests=records.with_leases(made, leases),
                events=journal.newest(connection, events) if events else (),
            )
    except schema.Damaged as error:
        raise StoreDamaged(
            f"{database.path} is damaged ({error})",
            path=database.path,
            hint="restart nova-compute: it sets the file aside, and saves what can "
            "be read of it",
        ) from error


def recorded_state(
    kind: Callable[..., _State],
    connection: sqlite3.Connection,
    leases: tuple[Lease, ...],
    **more: object,
) -> _State:
    """Return all leases, and all else that must not be offered.

    :param kind: the type of the result; ``more`` has its further fields.
    """
    meta = schema.read_meta(connection)
    return kind(
        leases=leases,
        damaged_claims=records.damaged_claims(connection),
        unverified_regions=regions.read(connection),
        provider_origins={
            provider: ProviderOrigin(PciAddress.parse(address), key)
            for provider, address, key in schema.PROVIDER_ORIGINS.read(connection)
        },
        provider_classes=dict(schema.PROVIDERS.read(connection)),
        provider_plugins=dict(schema.PROVIDER_PLUGINS.read(connection)),
        store=meta.store,
        helper_claims=records.read_helper_claims(connection),
        epoch=meta.epoch,
        mdev_totals={
            MdevType(parent, name): total
            for parent, name, total in schema.MDEV_TOTALS.read(connection)
        },
        **more,
    )


# -- published names ----------------------------------------------------------------


def read_published_names(connection: sqlite3.Connection) -> PublishedNames:
    """Return all names that os_acc published."""
    assigned: defaultdict[str, set[PlacementName]] = defaultdict(set)
    for provider, kind, text in PUBLISHED_NAMES.read(connection):
        if kind in _KINDS:
            assigned[provider].add(PlacementName(_KINDS[kind], text))
    created = {
        PlacementName(_KINDS[kind], text): at
        for kind, text, at in CREATED_NAMES.read(connection)
        if kind in _KINDS
    }
    return PublishedNames(
        {each: frozenset(names) for each, names in assigned.items()},
        frozenset(created),
        {name: at for name, at in created.items() if at},
    )


def change_published_names(
    connection: sqlite3.Connection, added: PublishedNames, removed: PublishedNames
) -> None:
    """Record names as published, and others as no longer published."""
    connection.executemany(
        "DELETE FROM published_names WHERE provider = ? AND kind = ? AND name = ?",
        removed.rows(),
    )
    connection.executemany(
        "DELETE FROM created_names WHERE kind = ? AND name = ?", _created(removed)
    )
    PUBLISHED_NAMES.put(connection, added.rows(), keep=True)
    CREATED_NAMES.put(connection, [(*name, 0) for name in _created(added)], keep=True)
    created = {(kind, text) for kind, text, _ in CREATED_NAMES.read(connection)}
    in_use = [(name.kind.value, name.text, at) for name, at in added.in_use_at.items()]
    CREATED_NAMES.put(connection, [row for row in in_use if row[:2] in created])


def _created(names: PublishedNames) -> list[tuple[str, str]]:
    return [(name.kind.value, name.text) for name in names.created]
