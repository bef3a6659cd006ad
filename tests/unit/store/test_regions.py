# SPDX-License-Identifier: Apache-2.0

"""A region in doubt stays so, whatever becomes of what is recorded of it."""

from __future__ import annotations

import pytest

from os_acc.objects.pci import PciAddress, PciIdentity
from os_acc.objects.region import Region
from os_acc.store import Store, readonly, schema
from tests.unit.store.store_files import execute, reopened

_INTERFACE = "bfac4d85-1ee8-56fe-8c95-865ce1bbaa2d"
_IDENTITY = PciIdentity(0x8086, 0x0B2B, 0x8086, 0x138D, 0)


def region(slot: int, interface_id: str | None = _INTERFACE) -> Region:
    return Region(PciAddress(0, 0x3B, slot, 0), _IDENTITY, 0, interface_id, None)


DOUBTED, OTHER, NEVER = region(1), region(2), region(3)
FIXED = region(4, None)


def doubted(store: Store) -> list[Region]:
    found = store.standing().unknown_regions
    return [each for each in (DOUBTED, OTHER, NEVER, FIXED) if each in found]


def test_a_region_is_in_doubt_until_it_is_proved(store, state_path):
    store.forget_region(DOUBTED.key, "an image")
    assert doubted(reopened(state_path)) == [DOUBTED]
    assert DOUBTED in readonly.read(state_path, 1).unknown_regions
    store.know_region(DOUBTED.key)
    assert doubted(reopened(state_path)) == []


def test_damage_elsewhere_leaves_the_others_out_of_doubt(store, state_path, file):
    store.forget_region(DOUBTED.key, "an image")
    execute(file, "DROP TABLE events")
    store = reopened(state_path)
    assert store.damaged
    assert doubted(store) == [DOUBTED]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE unknown_regions SET key = 'another'",
        "UPDATE unknown_regions SET key = CAST(key AS BLOB)",
        "UPDATE unknown_regions SET image = 'another'",
        "UPDATE unknown_regions SET proved = 1",
        "UPDATE unknown_regions SET digest = ''",
        "DROP TABLE unknown_regions",
        "ALTER TABLE unknown_regions RENAME COLUMN key TO other",
    ],
)
def test_where_the_record_is_damaged_each_region_has_to_be_proved(
    store, state_path, file, damage
):
    store.forget_region(DOUBTED.key, "an image")
    execute(file, damage)
    store = reopened(state_path)
    # What cannot be programmed has not been left half-way.
    assert doubted(store) == [DOUBTED, OTHER, NEVER]
    store.forget_region(OTHER.key, "an image")
    store.know_region(OTHER.key)
    assert doubted(store) == [DOUBTED, NEVER]
    store.forget_region(OTHER.key, "an image")
    assert doubted(reopened(state_path)) == [DOUBTED, OTHER, NEVER]
    store.know_region(OTHER.key)
    store.know_region(DOUBTED.key)
    assert doubted(reopened(state_path)) == [NEVER]


def test_whoever_only_looks_believes_no_damaged_row(store, state_path, file):
    store.forget_region(DOUBTED.key, "an image")
    execute(file, "UPDATE unknown_regions SET key = 'another'")
    assert DOUBTED in readonly.read(state_path, 1).unknown_regions


def test_what_was_proved_before_a_loss_is_in_doubt_after_it(store, state_path, file):
    execute(file, "DROP TABLE unknown_regions")
    store = reopened(state_path)
    store.know_region(DOUBTED.key)
    execute(file, "UPDATE unknown_regions SET digest = '' WHERE key = '*'")
    execute(file, "DROP TABLE events")
    assert doubted(reopened(state_path)) == [DOUBTED, OTHER, NEVER]


def test_a_row_of_an_older_store_proves_nothing(store, state_path, file):
    file.unlink()
    execute(
        file,
        *(statement for step in schema.STEPS[:2] for statement in step),
        f"INSERT INTO unknown_regions VALUES ('{DOUBTED.key}', 'an image')",
        f"PRAGMA application_id = {schema.APPLICATION_ID}",
        "PRAGMA user_version = 2",
    )
    assert DOUBTED in readonly.read(state_path, 1).unknown_regions
    assert doubted(reopened(state_path)) == [DOUBTED, OTHER, NEVER]


def test_a_store_that_was_lost_says_nothing_of_regions(store, state_path, file):
    store.forget_region(DOUBTED.key, "an image")
    file.unlink()
    assert doubted(reopened(state_path)) == [DOUBTED, OTHER, NEVER]


def test_a_new_host_has_no_doubts(store):
    assert not store.standing().unknown_regions
    assert doubted(store) == []


def test_what_a_guest_could_program_is_no_failure_and_not_believed(store, state_path):
    store.know_region(DOUBTED.key, "a bitstream")
    found = store.standing().unknown_regions
    assert found.contents == {DOUBTED.key: "a bitstream"}
    assert found.believes(DOUBTED)
    store.entrust_region(DOUBTED.key)
    found = reopened(state_path).standing().unknown_regions
    assert doubted(store) == []
    assert found.contents == {}
    assert not found.believes(DOUBTED)
    store.know_region(DOUBTED.key)
    assert store.standing().unknown_regions.believes(DOUBTED)


def test_what_a_guest_could_program_is_in_doubt_where_the_record_is_damaged(
    store, state_path, file
):
    store.entrust_region(DOUBTED.key)
    execute(file, "UPDATE unknown_regions SET proved = 1")
    assert doubted(reopened(state_path)) == [DOUBTED, OTHER, NEVER]


def test_a_failure_stays_one_whoever_is_given_the_region(store):
    store.forget_region(DOUBTED.key, "an image")
    store.entrust_region(DOUBTED.key)
    assert doubted(store) == [DOUBTED]


def test_what_was_never_begun_changes_nothing(store):
    store.entrust_region(DOUBTED.key)
    store.know_region(OTHER.key, "a bitstream")
    before = store.standing().unknown_regions
    for each in (DOUBTED, OTHER, NEVER):
        recorded = store.forget_region(each.key, "an image")
        assert doubted(store) == [each]
        store.recall_region(each.key, recorded)
        assert store.standing().unknown_regions == before


def test_what_was_never_begun_proves_nothing_where_all_are_in_doubt(
    store, state_path, file
):
    execute(file, "DROP TABLE unknown_regions")
    store = reopened(state_path)
    store.recall_region(OTHER.key, store.forget_region(OTHER.key, "an image"))
    store.entrust_region(OTHER.key)
    assert doubted(store) == [DOUBTED, OTHER, NEVER]
