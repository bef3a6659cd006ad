# SPDX-License-Identifier: Apache-2.0

"""A commit of the store survives a kill and a loss of power at each of its steps.

The store is then that of before or that of after the commit; once the commit has
returned, it is that of after.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from os_acc.objects.lease import Lease
from os_acc.store import Store, snapshot
from tests.stress.power_cuts import Disk, Files
from tests.unit.store.conftest import make_lease as make_lease
from tests.unit.store.store_files import STEP, execute, fill, reopened, rows, set_steps

Make = Callable[..., Lease]
Snapshot = snapshot.StoreSnapshot


def add(store: Store, make: Make) -> None:
    store.add([make(slot) for slot in range(2, 20)])


def replace(store: Store, make: Make) -> None:
    store.replace(store.leases())


def delete(store: Store, make: Make) -> None:
    store.delete(store.leases())


def start(path: Path, files: Files) -> Store:
    """Start a service on these files."""
    shutil.rmtree(path, ignore_errors=True)
    # The lock shows that there was a store.
    (path / "locks").mkdir(parents=True)
    (path / "locks" / "9-store").touch()
    for name, content in files.items():
        (path / name).write_bytes(content)
    return reopened(str(path))


def check(path: Path, disk: Disk, before: Snapshot, after: Snapshot) -> None:
    """Check each content that a loss of power may leave."""

    def found(files: Files) -> Snapshot:
        assert start(path, files).damaged == ()
        return snapshot.read(str(path))

    every = list(disk.distinct())
    assert len(every) > 2
    assert all(found(each) in (before, after) for each in every)
    assert all(found(each) == after for each in disk.states[-1])


@pytest.fixture
def place(tmp_path: Path, make_lease: Make) -> Path:
    fill(reopened(str(tmp_path / "state")), make_lease)
    return tmp_path / "state"


@pytest.mark.parametrize("act", [add, replace, delete], ids=lambda each: each.__name__)
def test_a_commit_is_there_or_not(tmp_path, place, make_lease, act):
    store, before, disk = reopened(str(place)), snapshot.read(str(place)), Disk(place)
    with disk.watched():
        act(store, make_lease)
    after = snapshot.read(str(place))
    assert after != before
    check(tmp_path / "cut", disk, before, after)


def test_an_upgrade_is_there_or_not(tmp_path, place, monkeypatch):
    before, disk = snapshot.read(str(place)), Disk(place)
    content = (place / "os_acc.sqlite").read_bytes()
    set_steps(monkeypatch, STEP)
    with disk.watched():
        reopened(str(place))
    check(tmp_path / "cut", disk, before, before)
    versions = set()
    for files in disk.distinct():
        image = tmp_path / "image"
        image.write_bytes(files["os_acc.sqlite"])
        ((version,),) = rows(image, "PRAGMA user_version")
        versions.add(version)
        # An older os_acc goes on with what it has written.
        assert version == 2 or files["os_acc.sqlite"] == content
    assert versions == {1, 2}


def test_a_damaged_store_or_its_successor_is_there(tmp_path, place):
    leases = snapshot.read(str(place)).leases
    execute(place / "os_acc.sqlite", "DROP TABLE events")
    disk = Disk(place)
    with disk.watched():
        assert reopened(str(place)).damaged
    for files in disk.distinct():
        store = start(tmp_path / "cut", files)
        assert store.damaged
        assert store.leases() == leases


@pytest.mark.parametrize("unsynced", ["os_acc.sqlite.new", "state"])
def test_each_sync_is_necessary(tmp_path, place, make_lease, unsynced):
    """The check finds a commit without the sync of its file or of its name."""
    store, before, disk = reopened(str(place)), snapshot.read(str(place)), Disk(place)
    with disk.watched(ignored=unsynced):
        add(store, make_lease)
    with pytest.raises(AssertionError):
        check(tmp_path / "cut", disk, before, snapshot.read(str(place)))


def test_a_commit_waits_for_the_disk_twice(place, make_lease, monkeypatch):
    store, fsync, synced = reopened(str(place)), os.fsync, list[str]()

    def counted(descriptor: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    store.leases()
    assert synced == []
    store.add([make_lease(2)])
    assert synced == ["os_acc.sqlite.new", "state"]
