# SPDX-License-Identifier: Apache-2.0

"""One wrong bit in the store is reported or harmless; stress tests try 20,000."""

import contextlib
import os
import pathlib
import sqlite3

import pytest

from os_acc.testing.helper import privileged_here
from tests.stress.bit_flips import TABLES, Flips
from tests.unit.store.store_files import execute


@pytest.fixture
def flips(tmp_path: pathlib.Path):
    with privileged_here():
        yield Flips(os.path.join(tmp_path, "bench"))


def test_every_table_has_rows(flips):
    with contextlib.closing(sqlite3.connect(flips.file)) as connection:
        found = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        )
        assert {name for (name,) in found} == set(TABLES)
        for table in TABLES:
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]


def test_a_few_random_bits_may_be_wrong(flips):
    assert [why for why in map(flips.trouble, flips.bits("unit", 40)) if why] == []


def test_another_version_of_the_format_is_reported_or_harmless(flips):
    for place in (18, 19, 47, 59):
        for version in (0, 2, 3, 129):
            content = bytearray(flips.content)
            content[place] = version
            assert not flips.trouble_with(content), (place, version)


@pytest.mark.parametrize("table", [each for each in TABLES if each != "damaged_leases"])
def test_another_type_of_a_value_is_reported(flips, table):
    with contextlib.closing(sqlite3.connect(flips.file)) as connection:
        columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
    for _, column, *_ in columns:
        if (table, column) == ("events", "id"):
            # An integer key accepts no other type.
            continue
        flips.file.write_bytes(flips.content)
        execute(flips.file, f"UPDATE {table} SET {column} = CAST({column} AS BLOB)")
        assert not flips.trouble_with(flips.file.read_bytes()), (table, column)
