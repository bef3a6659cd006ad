# SPDX-License-Identifier: Apache-2.0

"""os_acc writes only its own providers and names into the trees that Nova passes."""

import dataclasses
import logging
import sys
import threading
from concurrent import futures

import pytest

from os_acc import exception
from os_acc.objects import provider_names
from os_acc.objects.device import CardProvider
from os_acc.objects.records import NO_NAMES, NameKind, PlacementName, PublishedNames
from os_acc.placement import published
from os_acc.placement.capacity import Capacity, Units
from os_acc.placement.provider_tree import TreeWriter
from os_acc.testing import uuid_of
from os_acc.testing.nova import FakeProviderTree
from tests.unit.invalid_values import WRONG, is_told
from tests.unit.placement.capacity_examples import (
    CLASS,
    OTHER_CLASS,
    RecordedNames,
    provider,
)
from tests.unit.placement.nova_side import FOREIGN_CLASS, NEIGHBOUR, NODE, Nova

CARD, LOST = uuid_of(1), uuid_of(7)
CARD_ABOVE = CardProvider(uuid_of(50), "node1_accel_card_1")


@pytest.fixture
def nova():
    return Nova()


class Service:
    """A writer with its record."""

    def __init__(self, record=None):
        self.record = record or RecordedNames()
        self.memory = published.PublishedCache(self.record.published_names())
        self._writer = TreeWriter("node1", self.memory)

    def write(self, tree, node, wanted):
        """Record the discovered providers, then write the tree."""
        self.memory.record(
            [each.provider for each in wanted if each.provider], self.record
        )
        self._writer.write(tree, node, wanted)


@pytest.fixture
def writer():
    return Service()


def capacity(number=1, total=4, reserved=0, traits=("CUSTOM_FAST",)):
    found = provider(number, traits=traits)
    return Capacity(found.uuid, found, {CLASS: Units(total, reserved)})


def of_class(name):
    """Return the capacity after the operator has set another resource class."""
    found = capacity()
    device = dataclasses.replace(found.provider.device, resource_class=name)
    return Capacity(
        found.uuid, dataclasses.replace(found.provider, device=device), {name: Units(4)}
    )


def leftover(uuid=LOST, total=1, name=CLASS):
    """Return the remaining capacity of a provider without its device."""
    return Capacity(uuid, None, {name: Units(total)})


def writes(writer, *wanted):
    """Return the update for :meth:`Nova.cycle`."""
    return lambda tree, node: writer.write(tree, node, wanted)


# -- new providers -------------------------------------------------------------


def test_a_provider_is_a_child_of_the_node_with_all_that_placement_asks(nova, writer):
    assert nova.cycle(writes(writer, capacity(reserved=1))) == {CARD}
    found = nova.known.data(CARD)
    assert (found.name, found.parent_uuid) == ("node1_accel_1", NODE)
    assert found.traits == {"CUSTOM_FAST"}
    assert found.inventory == {
        CLASS: {
            "total": 4,
            "reserved": 1,
            "min_unit": 1,
            "max_unit": 4,
            "step_size": 1,
            "allocation_ratio": 1.0,
        }
    }


def test_the_node_may_be_named_by_its_uuid(nova, writer):
    nova.cycle(lambda tree, _node: writer.write(tree, NODE, [capacity()]))
    assert nova.known.data(CARD).parent_uuid == NODE


def test_a_change_is_passed_on_and_nothing_else(nova, writer):
    nova.cycle(writes(writer, capacity(1), capacity(2)))
    assert nova.cycle(writes(writer, capacity(1, total=5), capacity(2))) == {CARD}
    assert nova.units(CARD) == {CLASS: (5, 0)}


def test_the_same_again_changes_nothing_and_calls_nothing(nova, writer, monkeypatch):
    wanted = [capacity(1), capacity(2, traits=())]
    nova.cycle(writes(writer, *wanted))
    for name in ("new_child", "update_inventory", "add_traits", "remove_traits"):
        monkeypatch.setattr(FakeProviderTree, name, None)
    nova.cycle(writes(writer, *wanted))
    nova.cycle(writes(Service(writer.record), *wanted))


# -- unchanged providers ---------------------------------------------------------


def test_what_others_have_in_the_tree_is_never_touched(nova, writer):
    for wanted in (
        [capacity(1)],
        [capacity(1, total=9, reserved=9, traits=()), leftover()],
        [],
    ):
        assert nova.cycle(writes(writer, *wanted)) <= {CARD}


def test_what_a_leftover_was_called_is_not_guessed(nova, writer):
    assert nova.cycle(writes(writer, leftover())) == set()


def test_a_provider_stays_for_what_is_leased_of_it(nova, writer):
    nova.cycle(writes(writer, capacity()))
    assert nova.cycle(writes(writer, leftover(CARD, 2))) == {CARD}
    assert nova.units(CARD) == {CLASS: (2, 0)}
    assert nova.known.data(CARD).traits == {"CUSTOM_FAST"}


def test_a_provider_that_is_not_offered_stays_and_nothing_of_it_is_free(nova, writer):
    """Units may be allocated; then Nova could not remove the provider."""
    nova.cycle(writes(writer, capacity()))
    assert nova.cycle(writes(writer)) == {CARD}
    assert nova.units(CARD) == {CLASS: (4, 4)}
    assert nova.cycle(writes(writer)) == set()
    assert nova.cycle(writes(writer, capacity())) == {CARD}
    assert nova.units(CARD) == {CLASS: (4, 0)}


def test_a_provider_that_somebody_has_removed_does_not_come_back(nova, writer):
    nova.cycle(writes(writer, capacity()))
    nova.known.remove(CARD)
    assert nova.cycle(writes(writer)) == set()


def test_a_provider_of_ours_without_our_class_is_left_alone(nova, writer):
    nova.cycle(writes(writer, capacity()))
    nova.known.update_inventory(CARD, {FOREIGN_CLASS: {"total": 4}})
    assert nova.cycle(writes(writer)) == set()


def test_a_class_that_a_provider_had_stays_and_nothing_of_it_is_free(nova, writer):
    """Units may be allocated; then Nova could not remove the class."""
    nova.cycle(writes(writer, capacity()))
    nova.cycle(writes(writer, of_class(OTHER_CLASS)))
    assert nova.units(CARD) == {CLASS: (4, 4), OTHER_CLASS: (4, 0)}
    assert nova.cycle(writes(writer, of_class(OTHER_CLASS))) == set()
    nova.cycle(writes(writer, capacity()))
    assert nova.units(CARD) == {CLASS: (4, 0), OTHER_CLASS: (4, 4)}


def test_a_class_that_novas_provider_configuration_adds_is_novas_to_keep(nova, writer):
    """Nova adds it after each update, and fails if the tree already has it."""
    nova.cycle(writes(writer, capacity()))
    inventory = nova.known.data(CARD).inventory
    nova.known.update_inventory(CARD, inventory | {"CUSTOM_MORE": {"total": 1}})
    nova.cycle(writes(writer, capacity()))
    assert nova.known.data(CARD).inventory == inventory


# -- traits ----------------------------------------------------------------------


def test_traits_that_others_have_added_stay(nova, writer):
    nova.cycle(writes(writer, capacity()))
    nova.known.add_traits(CARD, "CUSTOM_GOLD", "OWNER_NOVA")
    assert nova.cycle(writes(writer, capacity())) == set()
    assert nova.cycle(writes(writer, capacity(traits=()))) == {CARD}
    assert nova.known.data(CARD).traits == {"CUSTOM_GOLD", "OWNER_NOVA"}


def test_a_trait_that_does_not_hold_any_more_goes_until_it_has_gone(nova, writer):
    nova.cycle(writes(writer, capacity()))
    # Nova's update failed, so the next tree has the trait again.
    for _ in range(2):
        nova.known.add_traits(CARD, "CUSTOM_FAST")
        nova.cycle(writes(writer, capacity(traits=("CUSTOM_SLOW",))))
        assert nova.known.data(CARD).traits == {"CUSTOM_SLOW"}
    for _ in range(2):
        nova.cycle(writes(writer, capacity(traits=("CUSTOM_SLOW",))))
    # A trait that is added from now on is the operator's.
    nova.known.add_traits(CARD, "CUSTOM_FAST")
    assert nova.cycle(writes(writer, capacity(traits=("CUSTOM_SLOW",)))) == set()


def test_a_restart_forgets_neither_whose_a_trait_is_nor_that_it_has_to_go(nova, writer):
    nova.cycle(writes(writer, capacity()))
    nova.known.add_traits(CARD, "CUSTOM_GOLD")
    nova.cycle(writes(Service(writer.record), capacity(traits=())))
    assert nova.known.data(CARD).traits == {"CUSTOM_GOLD"}


def test_without_its_record_every_trait_may_be_somebodys(nova, writer):
    nova.cycle(writes(writer, capacity()))
    assert nova.cycle(writes(Service(), capacity(traits=()))) == set()


def test_without_its_record_a_device_that_has_moved_is_in_its_new_cell(nova, writer):
    nova.cycle(writes(writer, capacity(traits=("CUSTOM_NUMA_CELL_0",))))
    nova.known.add_traits(CARD, "CUSTOM_GOLD")
    nova.cycle(writes(Service(), capacity(traits=("CUSTOM_NUMA_CELL_1",))))
    assert nova.known.data(CARD).traits == {"CUSTOM_GOLD", "CUSTOM_NUMA_CELL_1"}


def test_a_removed_trait_that_comes_back_is_foreign(nova, writer):
    nova.cycle(writes(writer, capacity()))
    # Publishing through Placement's API has removed the trait.
    trait = frozenset({PlacementName(NameKind.TRAIT, "CUSTOM_FAST")})
    writer.memory.above(writer.record).change_published_names(
        NO_NAMES, PublishedNames({CARD: trait})
    )
    # The operator has added the trait again, so it is the operator's.
    nova.known.add_traits(CARD, "CUSTOM_FAST")
    nova.cycle(writes(writer, capacity(traits=())))
    assert nova.known.data(CARD).traits == {"CUSTOM_FAST"}


# -- cards -----------------------------------------------------------------------


def region(number, card=CARD_ABOVE):
    """Return the capacity of one region of a card."""
    found = capacity(number)
    provider = dataclasses.replace(found.provider, card=card)
    return dataclasses.replace(found, provider=provider)


def parents(nova):
    """Return the name of the parent of each of our providers, by provider name."""
    known = nova.known
    return {
        name: known.data(known.data(uuid).parent_uuid).name
        for name, uuid in nova.ours().items()
    }


def test_the_regions_of_a_card_are_below_it(nova, writer):
    nova.cycle(writes(writer, region(1), region(2), capacity(3)))
    assert parents(nova) == {
        "node1_accel_card_1": "node1",
        "node1_accel_1": "node1_accel_card_1",
        "node1_accel_2": "node1_accel_card_1",
        "node1_accel_3": "node1",
    }
    found = nova.known.data(CARD_ABOVE.uuid)
    assert (found.inventory, found.traits) == ({}, set())
    assert nova.cycle(writes(writer, region(1), region(2), capacity(3))) == set()


@pytest.mark.parametrize("is_offered", [True, False])
def test_no_class_stays_on_a_card(nova, writer, is_offered):
    """Nova adds those of its provider.yaml later, and fails if they are there."""
    card = CardProvider(provider_names.uuid_of(CARD_ABOVE.name), CARD_ABOVE.name)
    nova.known.new_child(card.name, NODE, uuid=card.uuid)
    nova.known.update_inventory(card.uuid, {"CUSTOM_Z": {"total": 2, "reserved": 0}})
    nova.cycle(writes(writer, *([region(1, card)] if is_offered else [])))
    assert nova.units(card.uuid) == {}


def test_a_region_from_before_there_were_cards_stays_where_it_is(nova, writer):
    """Nova's tree cannot move a provider, and allocations refer to it."""
    nova.cycle(writes(writer, capacity(1)))
    assert nova.cycle(writes(writer, region(1))) == set()
    assert parents(nova) == {"node1_accel_1": "node1"}


def test_a_card_whose_name_somebody_else_has_keeps_no_region(nova, writer):
    nova.known.new_child(CARD_ABOVE.name, NODE, uuid=LOST)
    nova.cycle(writes(writer, region(1)))
    assert parents(nova) == {"node1_accel_1": "node1", CARD_ABOVE.name: "node1"}


# -- names -----------------------------------------------------------------------


def test_a_name_that_somebody_elses_provider_has_is_left_to_it(nova, writer, caplog):
    """Placement accepts each name once, and Nova applies all changes or none."""
    nova.known.new_child("node1_accel_1", NEIGHBOUR, uuid=LOST)
    for _ in range(2):
        changed = nova.cycle(writes(writer, capacity(1), capacity(2)))
    assert changed == set()
    assert nova.ours() == {"node1_accel_1": LOST, "node1_accel_2": uuid_of(2)}
    (logged,) = caplog.messages
    assert "cannot create node1_accel_1 " in logged


def test_a_node_that_the_tree_does_not_have_is_told(nova, writer):
    tree = nova.known
    error = is_told(
        lambda: writer.write(tree, "elsewhere", [capacity()]),
        exception.InvalidInput,
        "elsewhere",
    )
    assert error.hint
    assert nova.ours() == {}


@pytest.mark.parametrize(("value", "shown"), WRONG)
def test_what_is_no_tree_or_no_node_is_told(nova, writer, value, shown):
    for arguments in ((value, "node1"), (nova.known, value)):
        is_told(
            lambda given=arguments: writer.write(*given, []),
            exception.InvalidInput,
            shown,
        )


@pytest.mark.parametrize(
    ("nodename", "logged"),
    [("node1", 0), ("node1.example.org", 0), ("node2", 1), ("node2.node1", 1)],
)
def test_another_name_for_this_node_is_told_once(writer, caplog, nodename, logged):
    caplog.set_level(logging.WARNING)
    nova = Nova(nodename)
    for _ in range(2):
        nova.cycle(writes(writer, capacity()))
    assert nova.known.data(CARD).parent_uuid == NODE
    assert len(caplog.messages) == logged
    assert all("node_name is 'node1'" in text for text in caplog.messages)


# -- concurrent threads ----------------------------------------------------------


@pytest.fixture
def restless():
    """Switch between threads as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
def test_threads_may_write_into_one_tree(writer, caplog):
    tree = FakeProviderTree()
    tree.new_root("node1", NODE)
    wanted = [capacity(number) for number in range(1, 32)]
    together = threading.Barrier(8)

    def write(_number):
        together.wait()
        writer.write(tree, "node1", wanted)

    with futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(8)))
    assert caplog.messages == []
    assert len(tree.get_provider_uuids()) == 32
