# SPDX-License-Identifier: Apache-2.0

"""Providers as rows of an open transaction: published names, origins, plugins.

No policy is applied here. A lost row of published names makes the name count as
foreign, and it stays in Placement. A lost row of an origin costs a provider its
name where cards share a serial number. A lost row of a plugin lets another
plugin offer a device while its own plugin fails.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType

from os_acc.objects.naming import ProviderOrigin
from os_acc.objects.pci import PciAddress
from os_acc.objects.published import NameKind, PlacementName, PublishedNames
from os_acc.store.proven_tables import MADE, OFFERED, PLACES, TOLD

_KINDS = {each.value: each for each in NameKind}


def read_published(connection: sqlite3.Connection) -> PublishedNames:
    """Return all names that os_acc published."""
    given: defaultdict[str, set[PlacementName]] = defaultdict(set)
    for provider, kind, text in TOLD.read(connection):
        if kind in _KINDS:
            given[provider].add(PlacementName(_KINDS[kind], text))
    made = {
        PlacementName(_KINDS[kind], text): at
        for kind, text, at in MADE.read(connection)
        if kind in _KINDS
    }
    return PublishedNames.of_mapping(
        {each: frozenset(names) for each, names in given.items()},
        frozenset(made),
        {name: at for name, at in made.items() if at},
    )


def change_published(
    connection: sqlite3.Connection, more: PublishedNames, gone: PublishedNames
) -> None:
    """Record names as published, and others as no longer published."""
    connection.executemany(
        "DELETE FROM told WHERE provider = ? AND kind = ? AND name = ?", gone.rows()
    )
    connection.executemany(
        "DELETE FROM made_names WHERE kind = ? AND name = ?", _made(gone)
    )
    TOLD.put(connection, more.rows(), keep=True)
    MADE.put(connection, [(*name, 0) for name in _made(more)], keep=True)
    ours = {(kind, text) for kind, text, _ in MADE.read(connection)}
    kept = [(name.kind.value, name.text, at) for name, at in more.kept.items()]
    MADE.put(connection, [row for row in kept if row[:2] in ours])


def _made(told: PublishedNames) -> list[tuple[str, str]]:
    return [(name.kind.value, name.text) for name in told.made]


def read_origins(connection: sqlite3.Connection) -> Mapping[str, ProviderOrigin]:
    """Return the origin of every provider ever offered, by its uuid."""
    return MappingProxyType(
        {
            provider: ProviderOrigin(PciAddress.parse(address), key)
            for provider, address, key in PLACES.read(connection)
        }
    )


def keep_origins(
    connection: sqlite3.Connection, places: Mapping[str, ProviderOrigin]
) -> None:
    """Record the current origins of providers."""
    PLACES.put(
        connection,
        [(uuid, str(each.address), each.key) for uuid, each in places.items()],
    )


def read_plugins(connection: sqlite3.Connection) -> Mapping[str, str]:
    """Return the recorded plugin of each provider, by the provider's uuid."""
    return MappingProxyType(dict(OFFERED.read(connection)))


def keep_plugins(connection: sqlite3.Connection, plugins: Mapping[str, str]) -> None:
    """Record the plugins that offer providers now."""
    OFFERED.put(connection, plugins.items())
