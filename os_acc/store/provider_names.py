# SPDX-License-Identifier: Apache-2.0

"""What providers are named after; in an open transaction, no policy here.

A row that is lost costs a name at worst, where cards share a serial number.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from types import MappingProxyType

from os_acc.objects.naming import ProviderOrigin
from os_acc.objects.pci import PciAddress
from os_acc.store.proof import PLACES


def read(connection: sqlite3.Connection) -> Mapping[str, ProviderOrigin]:
    """The place of every provider that was ever offered, by its uuid."""
    return MappingProxyType(
        {
            provider: ProviderOrigin(PciAddress.parse(address), key)
            for provider, address, key in PLACES.read(connection)
        }
    )


def keep(connection: sqlite3.Connection, places: Mapping[str, ProviderOrigin]) -> None:
    """Record where providers are now."""
    PLACES.put(
        connection,
        [(uuid, str(each.address), each.key) for uuid, each in places.items()],
    )
