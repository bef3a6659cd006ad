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

from os_acc.objects.naming import Place
from os_acc.objects.pci import PciAddress
from os_acc.store.proof import PLACES


def read(connection: sqlite3.Connection) -> Mapping[str, Place]:
    """The place of every provider that was ever offered, by its uuid."""
    return MappingProxyType(
        {
            provider: Place(PciAddress.parse(address), key)
            for provider, address, key in PLACES.read(connection)
        }
    )


def keep(connection: sqlite3.Connection, places: Mapping[str, Place]) -> None:
    """Record where providers are now."""
    PLACES.put(
        connection,
        [(uuid, str(each.address), each.key) for uuid, each in places.items()],
    )
