# SPDX-License-Identifier: Apache-2.0

"""The record of names published in Placement."""

from os_acc.objects.records import NO_NAMES, NameKind, PlacementName, PublishedNames
from os_acc.store import snapshot
from tests.unit.store.store_files import execute, reopened

FAST, SLOW = (
    PlacementName(NameKind.TRAIT, f"CUSTOM_{each}") for each in ("FAST", "SLOW")
)
CARD = PlacementName(NameKind.RESOURCE_CLASS, "CUSTOM_FAST")
ALL = PublishedNames(
    {"one": frozenset({FAST, SLOW, CARD}), "two": frozenset({FAST})}, {FAST}
)


def test_published_names_survive_a_restart(store, state_path):
    store.change_published_names(ALL)
    store.change_published_names(ALL)
    assert reopened(state_path).published_names() == ALL
    assert snapshot.read(state_path).published_names == ALL


def test_a_class_and_a_trait_of_one_name_are_distinct(store):
    store.change_published_names(ALL)
    store.change_published_names(NO_NAMES, PublishedNames({"one": frozenset({CARD})}))
    assert store.published_names().of("one") == {FAST, SLOW}


def test_the_last_refused_deletion_of_a_name_is_recorded(store, state_path):
    store.change_published_names(ALL)
    for at in (5, 7):
        store.change_published_names(PublishedNames(in_use_at={FAST: at}))
        assert store.published_names().in_use_at == {FAST: at}
    assert snapshot.read(state_path).published_names.in_use_at == {FAST: 7}
    store.change_published_names(NO_NAMES, PublishedNames(created=frozenset({FAST})))
    assert store.published_names().in_use_at == {}


def test_no_refused_deletion_of_a_foreign_name_is_recorded(store):
    store.change_published_names(PublishedNames(in_use_at={FAST: 5}))
    assert store.published_names() == NO_NAMES


def test_a_name_that_is_removed_and_added_again_stays(store):
    store.change_published_names(ALL)
    store.change_published_names(PublishedNames({"two": frozenset({FAST})}), ALL)
    assert store.published_names() == PublishedNames({"two": frozenset({FAST})})


def test_intact_names_of_a_damaged_store_are_recovered(store, state_path, file):
    store.change_published_names(ALL)
    execute(
        file,
        "DROP TABLE events",
        "INSERT INTO published_names VALUES ('one', 'no kind', 'CUSTOM_LOST', '')",
    )
    store = reopened(state_path)
    assert len(store.damaged) == 1
    assert store.published_names() == ALL
