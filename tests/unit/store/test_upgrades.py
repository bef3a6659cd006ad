# SPDX-License-Identifier: Apache-2.0

"""Upgrade the schema by one synthetic step, from version 1 to version 2."""

from __future__ import annotations

import os
import threading

import pytest

from os_acc import exception
from os_acc.store import Store, readonly
from tests.expected_errors import has
from tests.unit.store.store_files import STEP, execute, fill, reopened, rows, set_steps


@pytest.fixture
def filled(store, make_lease):
    """A store of version 1 with a row in each table of plain columns."""
    fill(store, make_lease)
    store.mark_region_unverified("a region", "an image")
    return store


@pytest.fixture
def upgraded(monkeypatch):
    """Let this process know version 2."""
    set_steps(monkeypatch, STEP)


def contents(store: Store) -> tuple[object, ...]:
    return (
        store.recorded_state(),
        store.published_names(),
        store.providers(),
        store.events(9),
    )


def snapshot(state_path: str) -> dict[str, bytes]:
    """Return the contents of all files below the state directory, except locks."""
    return {
        each.path: open(each.path, "rb").read()
        for each in os.scandir(state_path)
        if each.is_file()
    }


def is_refused(call) -> bool:
    with pytest.raises(
        exception.StateUnavailable, check=has(reason=exception.StateReason.TOO_NEW)
    ):
        call()
    return True


def test_an_upgrade_keeps_all_records(filled, state_path, file, monkeypatch):
    before = contents(filled)
    set_steps(monkeypatch, STEP)
    store = reopened(state_path)
    assert contents(store) == before
    assert store.damaged == ()
    assert rows(file, "PRAGMA user_version") == [(2,)]
    assert rows(file, "SELECT version FROM meta") == [(2,)]
    assert rows(file, "SELECT actor FROM events") == [("",)]
    assert reopened(state_path).damaged == ()


def test_an_open_store_is_upgraded_by_its_next_transaction(filled, file, monkeypatch):
    before = contents(filled)
    set_steps(monkeypatch, STEP)
    assert contents(filled) == before
    assert rows(file, "PRAGMA user_version") == [(2,)]


def test_an_upgraded_store_is_refused_by_an_older_os_acc(
    filled, state_path, monkeypatch
):
    before = contents(filled)
    with monkeypatch.context() as newer:
        set_steps(newer, STEP)
        reopened(state_path)
    files = snapshot(state_path)
    assert is_refused(filled.leases)
    assert is_refused(lambda: reopened(state_path))
    assert is_refused(lambda: readonly.read(state_path, 1))
    assert snapshot(state_path) == files
    set_steps(monkeypatch, STEP)
    assert contents(reopened(state_path)) == before


def test_a_newer_reader_reads_an_older_store_and_leaves_it(
    filled, state_path, monkeypatch
):
    before, files = readonly.read(state_path, 1), snapshot(state_path)
    assert before.leases == filled.leases()
    set_steps(monkeypatch, STEP)
    assert readonly.read(state_path, 1) == before
    assert snapshot(state_path) == files


def test_a_step_that_fails_changes_nothing(filled, state_path, file, monkeypatch):
    before, content = contents(filled), file.read_bytes()
    with monkeypatch.context() as newer:
        set_steps(newer, (*STEP, "INSERT INTO missing VALUES (1)"))
        with pytest.raises(exception.StateUnavailable, match="missing"):
            reopened(state_path)
    assert file.read_bytes() == content
    assert contents(filled) == before


def test_damage_is_found_before_an_older_store_is_served(
    filled, state_path, file, upgraded
):
    leases, names = filled.leases(), filled.published_names()
    execute(file, "UPDATE claims SET digest = ''")
    store = reopened(state_path)
    assert len(store.damaged) == 1
    assert (store.leases(), store.published_names()) == (leases, names)
    assert rows(file, "PRAGMA user_version") == [(2,)]


def test_processes_that_open_the_store_together_upgrade_it_once(
    filled, state_path, file, in_child, upgraded
):
    outcomes = []

    def opened() -> int:
        return len(reopened(state_path).leases())

    openers = [
        threading.Thread(target=lambda: outcomes.append(in_child(opened)))
        for _ in range(4)
    ]
    for opener in openers:
        opener.start()
    for opener in openers:
        opener.join()
    assert outcomes == ["1"] * 4
    assert rows(file, "SELECT count(*) FROM upgrades") == [(1,)]
