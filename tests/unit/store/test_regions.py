# SPDX-License-Identifier: Apache-2.0

"""Unverified regions stay unverified when their records are damaged or lost."""

import dataclasses

import pytest

from os_acc.objects.pci import PciAddress, PciIdentity
from os_acc.objects.region import RecordedImage, Region
from os_acc.store import Store, snapshot
from tests.unit.store.store_files import execute, reopened

_INTERFACE = "bfac4d85-1ee8-56fe-8c95-865ce1bbaa2d"
_IDENTITY = PciIdentity(0x8086, 0x0B2B, 0x8086, 0x138D, 0)


def region(slot: int, interface_id: str | None = _INTERFACE) -> Region:
    return Region(PciAddress(0, 0x3B, slot, 0), _IDENTITY, 0, interface_id, None)


IMAGE = RecordedImage("an image", "sha512", "5a")
BEGUN, OTHER, NEVER = region(1), region(2), region(3)
FIXED = region(4, None)


def unverified(store: Store) -> list[Region]:
    found = store.recorded_state().unverified_regions
    return [each for each in (BEGUN, OTHER, NEVER, FIXED) if each in found]


def test_a_region_is_unverified_until_it_is_verified(store, state_path):
    store.mark_region_unverified(BEGUN.key, "an image")
    assert unverified(reopened(state_path)) == [BEGUN]
    assert BEGUN in snapshot.read(state_path).unverified_regions
    store.mark_region_verified(BEGUN.key)
    assert unverified(reopened(state_path)) == []


def test_damage_of_another_table_leaves_other_regions_verified(store, state_path, file):
    store.mark_region_unverified(BEGUN.key, "an image")
    execute(file, "DROP TABLE events")
    store = reopened(state_path)
    assert store.damaged
    assert unverified(store) == [BEGUN]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE regions SET key = 'another'",
        "UPDATE regions SET key = CAST(key AS BLOB)",
        "UPDATE regions SET contents = 'another'",
        "UPDATE regions SET state = 1",
        "UPDATE regions SET image = 'another'",
        "UPDATE regions SET image = x'00'",
        "UPDATE regions SET digest = ''",
        "DROP TABLE regions",
        "ALTER TABLE regions RENAME COLUMN key TO other",
    ],
)
def test_a_damaged_record_makes_all_regions_unverified(store, state_path, file, damage):
    store.mark_region_unverified(BEGUN.key, "an image")
    execute(file, damage)
    store = reopened(state_path)
    # A region without programming cannot be half programmed, so it is not listed.
    assert unverified(store) == [BEGUN, OTHER, NEVER]
    store.mark_region_unverified(OTHER.key, "an image")
    store.mark_region_verified(OTHER.key)
    assert unverified(store) == [BEGUN, NEVER]
    store.mark_region_unverified(OTHER.key, "an image")
    assert unverified(reopened(state_path)) == [BEGUN, OTHER, NEVER]
    store.mark_region_verified(OTHER.key)
    store.mark_region_verified(BEGUN.key)
    assert unverified(reopened(state_path)) == [NEVER]


def test_a_snapshot_ignores_a_damaged_row(store, state_path, file):
    store.mark_region_unverified(BEGUN.key, "an image")
    execute(file, "UPDATE regions SET key = 'another'")
    assert BEGUN in snapshot.read(state_path).unverified_regions


def test_a_loss_makes_verified_regions_unverified(store, state_path, file):
    execute(file, "DROP TABLE regions")
    store = reopened(state_path)
    store.mark_region_verified(BEGUN.key)
    execute(file, "UPDATE regions SET digest = '' WHERE key = '*'")
    execute(file, "DROP TABLE events")
    assert unverified(reopened(state_path)) == [BEGUN, OTHER, NEVER]


def test_a_lost_store_makes_all_regions_unverified(store, state_path, file):
    store.mark_region_unverified(BEGUN.key, "an image")
    file.unlink()
    assert unverified(reopened(state_path)) == [BEGUN, OTHER, NEVER]


def test_a_new_store_has_no_unverified_region(store):
    assert not store.recorded_state().unverified_regions
    assert unverified(store) == []


def test_a_guest_writable_region_is_neither_unverified_nor_trusted(store, state_path):
    store.mark_region_verified(BEGUN.key, "a bitstream")
    found = store.recorded_state().unverified_regions
    assert found.contents == {BEGUN.key: "a bitstream"}
    assert found.trusts(BEGUN)
    store.mark_region_guest_writable(BEGUN.key)
    found = reopened(state_path).recorded_state().unverified_regions
    assert unverified(store) == []
    assert found.contents == {}
    assert not found.trusts(BEGUN)
    store.mark_region_verified(BEGUN.key)
    assert store.recorded_state().unverified_regions.trusts(BEGUN)


def test_a_damaged_record_of_a_guest_writable_region_makes_it_unverified(
    store, state_path, file
):
    store.mark_region_guest_writable(BEGUN.key)
    execute(file, "UPDATE regions SET state = 1")
    assert unverified(reopened(state_path)) == [BEGUN, OTHER, NEVER]


def test_an_unverified_region_that_a_guest_gets_stays_unverified(store):
    store.mark_region_unverified(BEGUN.key, "an image")
    store.mark_region_guest_writable(BEGUN.key)
    assert unverified(store) == [BEGUN]


def test_a_programming_that_never_began_changes_nothing(store):
    store.mark_region_guest_writable(BEGUN.key)
    store.mark_region_verified(OTHER.key, "a bitstream")
    before = store.recorded_state().unverified_regions
    for each in (BEGUN, OTHER, NEVER):
        recorded = store.mark_region_unverified(each.key, "an image")
        assert unverified(store) == [each]
        store.restore_region(each.key, recorded)
        assert store.recorded_state().unverified_regions == before


def test_a_programming_that_never_began_verifies_nothing_after_a_loss(
    store, state_path, file
):
    execute(file, "DROP TABLE regions")
    store = reopened(state_path)
    store.restore_region(OTHER.key, store.mark_region_unverified(OTHER.key, "an image"))
    store.mark_region_guest_writable(OTHER.key)
    assert unverified(store) == [BEGUN, OTHER, NEVER]


def recorded(store: Store) -> dict[str, RecordedImage]:
    return dict(store.recorded_state().unverified_regions.images)


def test_the_recorded_image_survives_a_guest(store, state_path):
    store.mark_region_unverified(BEGUN.key, "an image")
    assert recorded(store) == {}
    store.mark_region_verified(BEGUN.key, "a bitstream", IMAGE)
    store.mark_region_guest_writable(BEGUN.key)
    assert recorded(reopened(state_path)) == {BEGUN.key: IMAGE}
    assert dict(snapshot.read(state_path).unverified_regions.images) == {
        BEGUN.key: IMAGE
    }


def test_the_recorded_image_is_the_last_one_that_was_verified(store):
    store.mark_region_verified(BEGUN.key, "a bitstream", IMAGE)
    before = store.mark_region_unverified(BEGUN.key, "another image")
    assert recorded(store) == {BEGUN.key: IMAGE}
    store.restore_region(BEGUN.key, before)
    assert recorded(store) == {BEGUN.key: IMAGE}
    # The hardware itself has proved other contents.
    store.mark_region_verified(BEGUN.key)
    assert recorded(store) == {BEGUN.key: IMAGE}
    other = RecordedImage("another image", "sha512", "6b")
    store.mark_region_verified(BEGUN.key, "another bitstream", other)
    assert recorded(store) == {BEGUN.key: other}


def test_the_recorded_image_survives_damage_of_another_table(store, state_path, file):
    store.mark_region_verified(BEGUN.key, "a bitstream", IMAGE)
    store.mark_region_guest_writable(BEGUN.key)
    execute(file, "DROP TABLE events")
    store = reopened(state_path)
    assert store.damaged
    assert recorded(store) == {BEGUN.key: IMAGE}
    assert unverified(store) == []


def test_an_intact_recorded_image_survives_the_loss_of_other_rows(
    store, state_path, file
):
    store.mark_region_verified(BEGUN.key, "a bitstream", IMAGE)
    store.mark_region_verified(OTHER.key, "a bitstream", IMAGE)
    execute(file, f"UPDATE regions SET digest = '' WHERE key = '{OTHER.key}'")
    execute(file, "DROP TABLE events")
    store = reopened(state_path)
    assert recorded(store) == {BEGUN.key: IMAGE}
    # A later record of it, which is lost, may have made it unverified.
    assert unverified(store) == [BEGUN, OTHER, NEVER]


def test_an_accepted_region_is_trusted_unless_it_is_half_programmed(store):
    store.mark_region_guest_writable(BEGUN.key)
    store.mark_region_unverified(OTHER.key, "an image")
    accepted = frozenset({BEGUN.key, OTHER.key})
    found = dataclasses.replace(
        store.recorded_state().unverified_regions, accepted=accepted
    )
    assert found.trusts(BEGUN)
    assert not found.is_verified(BEGUN)
    assert not found.trusts(OTHER)
