# SPDX-License-Identifier: Apache-2.0

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
