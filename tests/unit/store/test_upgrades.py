# SPDX-License-Identifier: Apache-2.0

"""Upgrade the schema by one synthetic step, from version 1 to version 2."""

import os
import pathlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from os_acc import exception
from os_acc.store import Store, StoreDamaged, snapshot
from tests.expected_errors import raises
from tests.unit.store.store_files import STEP, execute, fill, reopened, rows, set_steps


@pytest.fixture
def filled(store, make_lease):
    """Return a store of version 1 with a row in each table of plain columns."""
    fill(store, make_lease)
    store.mark_region_unverified("a region", "an image")
    return store


@pytest.fixture
def upgraded(monkeypatch):
    """Add version 2 to the schema that this process knows."""
    set_steps(monkeypatch, STEP)


def contents(store: Store) -> tuple[object, ...]:
    return (
        store.recorded_state(),
        store.published_names(),
        store.providers(),
        store.events(9),
    )


def copies(state_path: str) -> dict[str, bytes]:
    """Return the contents of all files below the state directory, except locks."""
    return {
        each.path: open(each.path, "rb").read()
        for each in os.scandir(state_path)
        if each.is_file()
    }


def is_refused(call) -> bool:
    with raises(exception.StateReason.TOO_NEW):
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
    files = copies(state_path)
    assert is_refused(filled.leases)
    assert is_refused(lambda: reopened(state_path))
    assert is_refused(lambda: snapshot.read(state_path))
    assert copies(state_path) == files
    set_steps(monkeypatch, STEP)
    assert contents(reopened(state_path)) == before


def test_a_newer_reader_reads_an_older_store_and_leaves_it(
    filled, state_path, monkeypatch
):
    before, files = snapshot.read(state_path), copies(state_path)
    assert before.leases == filled.leases()
    set_steps(monkeypatch, STEP)
    assert snapshot.read(state_path) == before
    assert copies(state_path) == files


def test_a_step_that_fails_changes_nothing(filled, state_path, file, monkeypatch):
    before, content = contents(filled), file.read_bytes()
    with monkeypatch.context() as newer:
        set_steps(newer, (*STEP, "INSERT INTO missing VALUES (1)"))
        with pytest.raises(exception.StateUnavailable, match="missing"):
            reopened(state_path)
    assert file.read_bytes() == content
    assert contents(filled) == before


def test_damage_is_found_before_an_older_store_is_served(
    filled, state_path, file, monkeypatch
):
    leases, names = filled.leases(), filled.published_names()
    set_steps(monkeypatch, STEP)
    execute(file, "UPDATE claims SET digest = ''")
    store = reopened(state_path)
    assert len(store.damaged) == 1
    assert (store.leases(), store.published_names()) == (leases, names)
    assert rows(file, "PRAGMA user_version") == [(2,)]


def flip_bit_of_identity(file: pathlib.Path) -> None:
    ((identity,),) = rows(file, "SELECT store FROM meta")
    content = bytearray(file.read_bytes())
    content[content.index(str(identity).encode())] ^= 1
    file.write_bytes(content)


def damaging(statement: str) -> Callable[[pathlib.Path], None]:
    return lambda file: execute(file, statement)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(flip_bit_of_identity, id="flipped bit"),
        pytest.param(damaging("UPDATE meta SET digest = ''"), id="no digest"),
        pytest.param(damaging("UPDATE meta SET epoch = epoch + 1"), id="value"),
        pytest.param(
            damaging("UPDATE meta SET epoch = CAST(epoch AS BLOB)"), id="type"
        ),
        pytest.param(damaging("INSERT INTO meta SELECT * FROM meta"), id="two rows"),
        pytest.param(damaging("DROP TABLE meta"), id="no table"),
        pytest.param(damaging("DROP TABLE events"), id="no table of a step"),
    ],
)
def test_a_damaged_store_is_set_aside_before_any_step(
    filled, state_path, file, monkeypatch, damage
):
    leases, names = filled.leases(), filled.published_names()
    set_steps(monkeypatch, STEP)
    damage(file)
    content = file.read_bytes()
    with pytest.raises(StoreDamaged):
        snapshot.read(state_path)
    assert file.read_bytes() == content
    with pytest.raises(StoreDamaged) as caught:
        filled.leases()
    store = reopened(state_path)
    assert store.damaged == (caught.value.path,)
    assert pathlib.Path(caught.value.path).read_bytes() == content
    assert (store.leases(), store.published_names()) == (leases, names)
    assert rows(file, "PRAGMA user_version") == [(2,)]


def test_processes_that_open_the_store_together_upgrade_it_once(
    filled, state_path, file, in_child, upgraded
):
    def opened() -> int:
        return len(reopened(state_path).leases())

    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(in_child, [opened] * 4))
    assert outcomes == ["1"] * 4
    assert rows(file, "SELECT count(*) FROM upgrades") == [(1,)]
