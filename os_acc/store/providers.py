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
from collections.abc import Mapping
from types import MappingProxyType

from os_acc.objects.mdev import MdevType
from os_acc.objects.naming import ProviderOrigin
from os_acc.objects.pci import PciAddress
from os_acc.objects.published import NameKind, PlacementName, PublishedNames
from os_acc.store.schema import (
    CREATED_NAMES,
    MDEV_TOTALS,
    PROVIDER_ORIGINS,
    PROVIDER_PLUGINS,
    PUBLISHED_NAMES,
)

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


def read_origins(connection: sqlite3.Connection) -> Mapping[str, ProviderOrigin]:
    """Return the origin of every provider ever offered, by its uuid."""
    return MappingProxyType(
        {
            provider: ProviderOrigin(PciAddress.parse(address), key)
            for provider, address, key in PROVIDER_ORIGINS.read(connection)
        }
    )


def read_plugins(connection: sqlite3.Connection) -> Mapping[str, str]:
    """Return the recorded plugin of each provider, by the provider's uuid."""
    return MappingProxyType(dict(PROVIDER_PLUGINS.read(connection)))


def read_mdev_totals(connection: sqlite3.Connection) -> Mapping[MdevType, int]:
    """Return the recorded units of each type of mediated devices."""
    return MappingProxyType(
        {
            MdevType(parent, name): total
            for parent, name, total in MDEV_TOTALS.read(connection)
        }
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
