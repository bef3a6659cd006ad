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


"""By which plugin each provider was offered last.

A row that is lost lets another plugin offer the device while its own fails.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from types import MappingProxyType

from os_acc.store.proof import OFFERED


def read(connection: sqlite3.Connection) -> Mapping[str, str]:
    """The plugin of every provider of which it is on record, by its uuid."""
    return MappingProxyType(dict(OFFERED.read(connection)))


def keep(connection: sqlite3.Connection, plugins: Mapping[str, str]) -> None:
    """Record who offers providers now."""
    OFFERED.put(connection, plugins.items())
