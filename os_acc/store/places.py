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

"""What providers are named after; in an open transaction, no policy here.

A row that is lost costs a name at worst, where cards share a serial number.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from os_acc import exception
from os_acc.objects.naming import Place
from os_acc.objects.pci import PciAddress
from os_acc.store import schema

COLUMNS: Final = "provider, address, key"


def read(connection: sqlite3.Connection) -> Mapping[str, Place]:
    """The place of every provider that was ever offered, by its uuid."""
    found: dict[str, Place] = {}
    if schema.version_of(connection) < schema.WITH_PLACES:
        return MappingProxyType(found)
    for provider, address, key in connection.execute(f"SELECT {COLUMNS} FROM places"):
        try:
            found[provider] = Place(PciAddress.parse(address), key)
        except exception.InvalidPciAddress:
            # A damaged row names no function.
            continue
    return MappingProxyType(found)


def keep(connection: sqlite3.Connection, places: Mapping[str, Place]) -> None:
    """Record where providers are now."""
    connection.executemany(
        "INSERT OR REPLACE INTO places VALUES (?, ?, ?)",
        [(uuid, str(each.address), each.key) for uuid, each in places.items()],
    )
