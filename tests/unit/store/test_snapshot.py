# SPDX-License-Identifier: Apache-2.0

"""Read a snapshot of the store without side effects."""

import os
from pathlib import Path

import pytest

from os_acc import exception
from os_acc.store import StoreDamaged, snapshot
from os_acc.testing import TestHost


@pytest.fixture
def store(bench: TestHost) -> Path:
    """Return the path of a store in which the first instance has a GPU."""
    bench.plug(1, "0000:17:00.0")
    return Path(bench.state_path) / "os_acc.sqlite"


def test_a_snapshot_equals_the_store(store, bench):
    found = snapshot.read(bench.state_path)
    assert found.leases == bench.manager.store.leases()
    assert found.damaged_claims == ()


def test_a_snapshot_has_the_events_that_were_requested(store, bench):
    assert snapshot.read(bench.state_path).events == ()
    events = bench.manager.store.events(100)
    assert snapshot.read(bench.state_path, events=100).events == events
    assert snapshot.read(bench.state_path, events=1).events == events[-1:]


def test_the_snapshot_of_a_missing_store_is_empty(tmp_path):
    missing = tmp_path / "missing"
    assert snapshot.read(str(missing)) == snapshot.StoreSnapshot()
    assert not missing.exists()


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0" + b"\xff" * 4096, b"x"])
def test_a_damaged_file_is_an_error_and_stays(store, bench, content):
    store.write_bytes(content)
    with pytest.raises(StoreDamaged, match="is damaged"):
        snapshot.read(bench.state_path)
    assert store.read_bytes() == content


def test_a_directory_that_cannot_be_entered_is_not_an_empty_store(
    store, bench, monkeypatch
):
    def refuse(path: str, *_: object) -> None:
        raise PermissionError(13, os.strerror(13), path)

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(exception.StateUnavailable, match="Permission denied"):
        snapshot.read(bench.state_path)
