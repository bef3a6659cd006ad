# SPDX-License-Identifier: Apache-2.0

"""What Placement was told, on record."""

from __future__ import annotations

from os_acc.objects.published import NOTHING, NameKind, PlacementName, PublishedNames
from os_acc.store import readonly
from tests.unit.store.store_files import execute, reopened

FAST, SLOW = (
    PlacementName(NameKind.TRAIT, f"CUSTOM_{each}") for each in ("FAST", "SLOW")
)
CARD = PlacementName(NameKind.RESOURCE_CLASS, "CUSTOM_FAST")
ALL = PublishedNames(
    {"one": frozenset({FAST, SLOW, CARD}), "two": frozenset({FAST})}, {FAST}
)


def test_nothing_was_told_at_first(store):
    assert store.told() == NOTHING
    assert not store.told()


def test_what_was_told_is_known_to_the_next_service(store, state_path):
    store.change_published(ALL)
    store.change_published(ALL)
    assert reopened(state_path).told() == ALL
    assert readonly.read(state_path, 1).told == ALL


def test_a_class_and_a_trait_of_one_name_are_two(store):
    store.change_published(ALL)
    store.change_published(NOTHING, PublishedNames({"one": frozenset({CARD})}))
    assert store.told().of("one") == {FAST, SLOW}


def test_a_name_that_others_keep_is_known_with_the_time(store, state_path):
    store.change_published(ALL)
    for at in (5, 7):
        store.change_published(PublishedNames(kept={FAST: at}))
        assert store.told().kept == {FAST: at}
    assert readonly.read(state_path, 1).told.kept == {FAST: 7}
    store.change_published(NOTHING, PublishedNames(made=frozenset({FAST})))
    assert store.told().kept == {}


def test_a_name_that_is_not_of_our_making_is_kept_from_nothing(store):
    store.change_published(PublishedNames(kept={FAST: 5}))
    assert store.told() == NOTHING


def test_what_is_told_anew_while_it_goes_stays(store):
    store.change_published(ALL)
    store.change_published(PublishedNames({"two": frozenset({FAST})}), ALL)
    assert store.told() == PublishedNames({"two": frozenset({FAST})})


def test_what_can_be_read_of_a_damaged_store_stays_known(store, state_path, file):
    store.change_published(ALL)
    execute(
        file,
        "DROP TABLE events",
        "INSERT INTO told VALUES ('one', 'no kind', 'CUSTOM_LOST', '')",
    )
    store = reopened(state_path)
    assert len(store.damaged) == 1
    assert store.told() == ALL
