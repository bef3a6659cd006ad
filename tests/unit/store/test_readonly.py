# SPDX-License-Identifier: Apache-2.0

"""Read a snapshot of the store without side effects."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.store import StoreDamaged, readonly
from os_acc.testing import TestHost, uuid_of
from tests.expected_errors import has
from tests.unit.store.store_files import set_version

# Enough data to move half of a transaction from the cache into the file.
_DIE_WITHIN_A_TRANSACTION = """
import os, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 1")
connection.execute("BEGIN IMMEDIATE")
connection.execute("DELETE FROM claims")
connection.execute("DELETE FROM leases")
for number in range(2000):
    connection.execute("INSERT INTO claims VALUES (?, 'x', '')", (str(number) * 50,))
os._exit(9)
"""


@pytest.fixture
def store(bench: TestHost) -> Path:
    """Return the path of a store in which the first instance has a GPU."""
    bench.plug(1, "0000:17:00.0")
    return Path(bench.state_path) / "os_acc.sqlite"


def test_a_snapshot_equals_the_store(store: Path, bench: TestHost) -> None:
    found = readonly.read(bench.state_path, 1.0)
    assert found.leases == bench.manager.store.leases()
    assert found.damaged_claims == ()


def test_a_snapshot_has_the_events_that_were_requested(
    store: Path, bench: TestHost
) -> None:
    assert readonly.read(bench.state_path, 1.0).events == ()
    events = bench.manager.store.events(100)
    assert readonly.read(bench.state_path, 1.0, events=100).events == events
    assert readonly.read(bench.state_path, 1.0, events=1).events == events[-1:]


def test_the_snapshot_of_a_missing_store_is_empty(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    assert readonly.read(str(missing), 1.0) == readonly.StoreSnapshot()
    assert not missing.exists()


def test_a_transaction_of_a_killed_process_is_not_read(
    store: Path, bench: TestHost
) -> None:
    expected = bench.manager.store.leases()
    subprocess.run(
        [sys.executable, "-c", _DIE_WITHIN_A_TRANSACTION, str(store)], check=False
    )
    journal = Path(f"{store}-journal")
    before = store.read_bytes(), journal.read_bytes()
    with sqlite3.connect(f"file:{store}?immutable=1", uri=True) as as_it_is:
        assert as_it_is.execute("SELECT count(*) FROM leases").fetchone() == (0,)
    as_it_is.close()
    assert readonly.read(bench.state_path, 1.0).leases == expected
    assert (store.read_bytes(), journal.read_bytes()) == before


def test_an_unreadable_lease_keeps_its_device_claimed(
    store: Path, bench: TestHost
) -> None:
    bench.plug(2, "0000:5e:00.0")
    with sqlite3.connect(store) as connection:
        connection.execute(
            "UPDATE leases SET digest = '' WHERE consumer = ?", (uuid_of(1),)
        )
    connection.close()
    found = readonly.read(bench.state_path, 1.0)
    assert [lease.consumer for lease in found.leases] == [uuid_of(2)]
    assert list(map(str, found.damaged_claims)) == ["0000:17:00.0", "0000:17:00.1"]


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0" + b"\xff" * 4096, b"x"])
def test_a_damaged_file_is_an_error_and_stays(
    store: Path, bench: TestHost, content: bytes
) -> None:
    store.write_bytes(content)
    with pytest.raises(StoreDamaged, match="is damaged"):
        readonly.read(bench.state_path, 1.0)
    assert store.read_bytes() == content


def test_a_store_of_a_newer_os_acc_is_not_read(store: Path, bench: TestHost) -> None:
    set_version(store, 999)
    with pytest.raises(
        exception.StateUnavailable, check=has(reason=exception.StateReason.TOO_NEW)
    ):
        readonly.read(bench.state_path, 1.0)


def test_a_snapshot_waits_for_a_writer_until_its_timeout(
    store: Path, bench: TestHost
) -> None:
    with sqlite3.connect(store, isolation_level=None) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(
            exception.StateUnavailable, check=has(reason=exception.StateReason.BUSY)
        ):
            readonly.read(bench.state_path, 0.05)
        writer.execute("ROLLBACK")
    writer.close()
    assert len(readonly.read(bench.state_path, 0.05).leases) == 1


def test_a_directory_that_cannot_be_entered_is_not_an_empty_store(
    store: Path, bench: TestHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise PermissionError(13, os.strerror(13), path)

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(exception.StateUnavailable, match="Permission denied"):
        readonly.read(bench.state_path, 1.0)
