# SPDX-License-Identifier: Apache-2.0

"""The fake provider tree behaves as Nova's, which passes the same tests."""

import copy

import pytest

from os_acc.placement import provider_tree as placement
from os_acc.testing.nova import FakeProviderTree

NODE, CARD, PART = (f"{n}0000000-1111-4111-8111-111111111111" for n in "123")


def record(total=1, **more):
    return {"total": total, "reserved": 0, "allocation_ratio": 1.0, **more}


@pytest.fixture
def tree():
    made = FakeProviderTree()
    made.new_root("node1", NODE, generation=7)
    made.new_child("card", "node1", uuid=CARD, generation=3)
    made.new_child("part", CARD, uuid=PART)
    return made


def test_it_is_what_os_acc_takes(tree):
    assert isinstance(tree, placement.ProviderTree)


def test_a_provider_is_found_by_name_and_by_uuid(tree):
    assert all(map(tree.exists, ("node1", NODE, "card", CARD, "part", PART)))
    assert tree.data("part") == tree.data(PART)
    assert tree.data(PART).parent_uuid == CARD
    assert tree.data(CARD).generation == 3
    assert tree.data(NODE).parent_uuid is None


def test_providers_are_listed_from_the_top_down(tree):
    tree.new_child("second", NODE)
    uuids = tree.get_provider_uuids()
    assert uuids[:3] == [NODE, CARD, PART]
    assert len(uuids) == 4
    assert tree.get_provider_uuids("card") == [CARD, PART]


def test_what_is_not_there_is_a_value_error(tree):
    assert not tree.exists("what")
    for call in (
        lambda: tree.data("what"),
        lambda: tree.new_child("new", "what"),
        lambda: tree.has_inventory_changed("what", {}),
        lambda: tree.update_inventory("what", {}),
        lambda: tree.add_traits("what", "CUSTOM_A"),
        lambda: tree.remove_traits("what", "CUSTOM_A"),
        lambda: tree.remove("what"),
    ):
        with pytest.raises(ValueError, match="what"):
            call()


def test_of_two_with_one_uuid_the_second_is_refused(tree):
    with pytest.raises(ValueError, match="already exists"):
        tree.new_child("another", NODE, uuid=CARD)
    with pytest.raises(ValueError, match="already exists"):
        tree.new_root("another", NODE)
    with pytest.raises(ValueError, match="already exists"):
        tree.new_child("card", NODE)


def test_of_two_with_one_name_none_is_refused_if_it_has_a_uuid(tree):
    """Placement refuses the name later, and Nova's entire update then fails."""
    other = "40000000-1111-4111-8111-111111111111"
    assert tree.new_child("card", NODE, uuid=other) == other
    assert tree.data(other).name == "card"


def test_what_is_read_is_a_copy(tree):
    tree.update_inventory(CARD, {"CUSTOM_A": record()})
    tree.add_traits(CARD, "CUSTOM_FAST")
    data = tree.data(CARD)
    data.inventory["CUSTOM_A"]["total"] = 9
    data.traits.clear()
    assert tree.data(CARD).inventory == {"CUSTOM_A": record()}
    assert tree.data(CARD).traits == {"CUSTOM_FAST"}


def test_what_was_written_is_a_copy(tree):
    inventory = {"CUSTOM_A": record()}
    tree.update_inventory(CARD, inventory)
    inventory["CUSTOM_A"]["total"] = 9
    assert tree.data(CARD).inventory == {"CUSTOM_A": record()}


def test_a_copy_of_the_tree_is_a_tree_of_its_own(tree):
    other = copy.deepcopy(tree)
    tree.update_inventory(CARD, {"CUSTOM_A": record()})
    tree.remove(PART)
    assert other.data(CARD).inventory == {}
    assert other.exists(PART)


@pytest.mark.parametrize(
    ("new", "changed"),
    [
        ({"CUSTOM_A": record()}, False),
        ({"CUSTOM_A": {"total": 1}}, False),
        ({"CUSTOM_A": {}}, False),
        ({"CUSTOM_A": record(2)}, True),
        ({"CUSTOM_A": record(step_size=1)}, True),
        ({"CUSTOM_B": record()}, True),
        ({"CUSTOM_A": record(), "CUSTOM_B": record()}, True),
        ({}, True),
    ],
)
def test_an_inventory_is_another_one_by_what_it_says(tree, new, changed):
    tree.update_inventory(CARD, {"CUSTOM_A": record()})
    assert tree.has_inventory_changed(CARD, new) is changed
    assert tree.update_inventory("card", new) is changed
    after = new if changed else {"CUSTOM_A": record()}
    assert tree.data(CARD).inventory == after
    assert tree.data(CARD).generation == 3


def test_traits_come_and_go_one_by_one(tree):
    tree.add_traits(CARD, "CUSTOM_A", "CUSTOM_B")
    tree.add_traits(CARD)
    tree.remove_traits(CARD, "CUSTOM_B", "CUSTOM_C")
    tree.remove_traits(CARD)
    assert tree.data(CARD).traits == {"CUSTOM_A"}
    assert tree.update_traits(CARD, ["CUSTOM_A"]) is False
    assert tree.update_traits(CARD, ["CUSTOM_D"], generation=4) is True
    assert tree.data(CARD).traits == {"CUSTOM_D"}
    assert tree.data(CARD).generation == 4


def test_a_provider_goes_with_all_that_are_below_it(tree):
    tree.remove("card")
    assert tree.get_provider_uuids() == [NODE]
