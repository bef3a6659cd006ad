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

"""The store's file, as others come by it."""

from __future__ import annotations

import contextlib
import pathlib
import sqlite3

from os_acc.store import Store


def file_in(state_path: str) -> pathlib.Path:
    """Where a store is."""
    return pathlib.Path(state_path, "os_acc.sqlite")


def execute(file: pathlib.Path, *statements: str) -> None:
    """Somebody opens the store with a tool of his."""
    with contextlib.closing(sqlite3.connect(file)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def reopened(state_path: str) -> Store:
    """The store as the next service has it."""
    return Store.open(state_path, busy_timeout=30)
