# SPDX-License-Identifier: Apache-2.0

"""Providers as rows of an open transaction: names, origins, plugins, totals.

No policy is applied here. A lost row of published names makes the name count as
foreign, and it stays in Placement. A lost row of an origin costs a provider its
name where cards share a serial number. A lost row of a plugin lets another
plugin offer a device while its own plugin fails. A lost total of mediated devices is
counted again, without the units that others use, until none of them exists.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

from os_acc.objects.lease import Lease
from os_acc.objects.mdev import MdevType
from os_acc.objects.naming import ProviderOrigin
from os_acc.objects.pci import PciAddress
from os_acc.objects.records import (
    NameKind,
    PlacementName,
    PublishedNames,
    RecordedState,
)
from os_acc.store import records, regions, schema
from os_acc.store.schema import (
    CREATED_NAMES,
    MDEV_TOTALS,
    PROVIDER_ORIGINS,
    PROVIDER_PLUGINS,
    PROVIDERS,
    PUBLISHED_NAMES,
)

_State = TypeVar("_State", bound=RecordedState)
_KINDS = {each.value: each for each in NameKind}


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
    return PublishedNames.of_mapping(
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
    origins = PROVIDER_ORIGINS.read(connection)
    totals = MDEV_TOTALS.read(connection)
    return kind(
        leases=leases,
        damaged_claims=records.damaged_claims(connection),
        unverified_regions=regions.read(connection),
        provider_origins=MappingProxyType(
            {
                provider: ProviderOrigin(PciAddress.parse(address), key)
                for provider, address, key in origins
            }
        ),
        provider_classes=MappingProxyType(dict(PROVIDERS.read(connection))),
        provider_plugins=MappingProxyType(dict(PROVIDER_PLUGINS.read(connection))),
        store=meta.store,
        helper_claims=records.read_helper_claims(connection),
        epoch=meta.epoch,
        mdev_totals=MappingProxyType(
            {MdevType(parent, name): total for parent, name, total in totals}
        ),
        **more,
    )


def record(
    connection: sqlite3.Connection,
    origins: Mapping[str, ProviderOrigin],
    plugins: Mapping[str, str],
    mdev_totals: Mapping[MdevType, int],
) -> None:
    """Record the origins and plugins of providers, and the totals of types, as now."""
    PROVIDER_ORIGINS.put(
        connection,
        [(uuid, str(each.address), each.key) for uuid, each in origins.items()],
    )
    PROVIDER_PLUGINS.put(connection, plugins.items())
    totals = mdev_totals.items()
    MDEV_TOTALS.put(
        connection, [(each.parent, each.name, total) for each, total in totals]
    )
