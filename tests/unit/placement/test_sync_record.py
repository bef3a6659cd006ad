# SPDX-License-Identifier: Apache-2.0

"""A service that publishes uses its record, and survives the record's loss."""

import dataclasses

import pytest

from os_acc import exception
from os_acc.objects.records import NO_NAMES, NameKind, PlacementName, PublishedNames
from os_acc.placement.api_tree import KEPT_SECONDS
from os_acc.placement.sync import Publisher, SyncResult
from os_acc.testing import uuid_of
from tests.unit.placement import capacity_examples
from tests.unit.placement.capacity_examples import CLASS
from tests.unit.placement.placement_double import NODE
from tests.unit.placement.publishing import OF_PLACEMENT, ONE, TWO, Service, capacity


def test_a_name_is_recorded_before_it_is_published(double, service):
    seen = []
    keep = service.record.change_published_names

    def change(added, removed=NO_NAMES):
        seen.append((bool(added.assigned), list(double.writes())))
        keep(added, removed)

    service.record.change_published_names = change
    service.sync(ONE)
    assert seen[0] == (True, [])
    trait = PlacementName(NameKind.TRAIT, "CUSTOM_FAST")
    assert trait in service.record.published_names().of(ONE.uuid)
    assert trait in service.record.published_names().created


def test_a_withdrawn_name_is_removed_from_the_record(double, service):
    service.sync(ONE, TWO)
    service.sync(capacity(1, traits=()))
    assert service.record.published_names() == PublishedNames(
        {ONE.uuid: frozenset({PlacementName(NameKind.RESOURCE_CLASS, CLASS)})},
        frozenset({PlacementName(NameKind.RESOURCE_CLASS, CLASS)}),
    )
    service.sync()
    assert not service.record.published_names()
    assert double.providers.keys() == {NODE}
    assert (CLASS in double.classes, "CUSTOM_FAST" in double.traits) == (False, False)


@pytest.mark.parametrize("ours", [CLASS, "FPGA", "CUSTOM_MINE"])
def test_after_the_loss_of_the_record_others_classes_of_a_device_stay(double, ours):
    double.classes |= {"FPGA", "CUSTOM_NET"}
    Service(double).sync(capacity(1, name=ours))
    foreign_inventory = {"total": 7, "reserved": 0}
    double.providers[ONE.uuid].inventories["CUSTOM_NET"] = foreign_inventory
    after = Service(double, named={"CUSTOM_MINE"})
    found = after.sync()
    assert [str(each) for each in found.done] == [
        f"set inventory of {ONE.provider.name}: {ours} total 4 reserved 4 "
        "(was total 4 reserved 0)"
    ]
    assert double.providers[ONE.uuid].inventories["CUSTOM_NET"] == foreign_inventory
    assert after.sync().writes == 0


HELD, BEFORE = uuid_of(71), uuid_of(72)


def region(holds):
    """Return the capacity of a region that holds this function."""
    return dataclasses.replace(ONE, provider=capacity_examples.region(1, holds))


def test_after_the_loss_of_the_record_a_region_holds_what_it_holds(double):
    before, now = region(BEFORE), region(HELD)
    Service(double).sync(before)
    others = {"CUSTOM_GOLD", "CUSTOM_FPGA_XILINX_FUNCTION_1", "CUSTOM_FPGA_FUNCTION_A"}
    double.traits |= others
    double.providers[ONE.uuid].traits |= others
    after = Service(double)
    assert after.sync(now).refused == ()
    assert double.providers[ONE.uuid].traits == now.provider.device.traits | others
    assert after.sync(now).writes == 0


def test_a_name_is_of_our_making_once_placement_has_said_so(double, service):
    """The service stops before the name is created; another client then creates it."""
    double.trouble("PUT", "/traits/CUSTOM_FAST", times=99)
    with pytest.raises(exception.ServiceUnavailable, check=OF_PLACEMENT):
        service.sync(ONE)
    double._troubles.clear()
    double.traits.add("CUSTOM_FAST")
    after = Service(double, service.record)
    assert after.sync(ONE).refused == ()
    after.sync()
    assert "CUSTOM_FAST" in double.traits
    assert CLASS not in double.classes


def test_a_name_that_was_made_is_on_record_whatever_comes_next(double, service):
    double.trouble("POST", "/resource_providers", times=99)
    with pytest.raises(exception.ServiceUnavailable, check=OF_PLACEMENT):
        service.sync(ONE)
    double._troubles.clear()
    Service(double, service.record).sync()
    assert "CUSTOM_FAST" not in double.traits
    assert CLASS not in double.classes


def test_a_name_that_is_there_already_is_not_of_our_making(double, service):
    double.traits.add("CUSTOM_FAST")
    service.sync(ONE)
    service.sync()
    assert "CUSTOM_FAST" in double.traits


def test_a_name_of_ours_is_kept_while_others_use_it_and_deleted_in_the_end(
    double, service, clock
):
    service.sync(ONE, TWO)
    double.providers[NODE].traits.add("CUSTOM_FAST")
    without = capacity(1, traits=()), capacity(2, traits=())
    service.sync(*without)
    assert "CUSTOM_FAST" in double.traits
    # The next run and the next command read that from the record.
    for each in (service, Service(double, service.record)):
        each.sync(*without)
        assert each.sync(*without) == SyncResult((), (), reads=1, writes=0)
        assert each.plan(*without).steps == ()
    double.providers[NODE].traits.clear()
    assert service.sync(*without).writes == 0
    clock.pass_by(KEPT_SECONDS)
    found = Service(double, service.record).sync(*without)
    assert [str(each) for each in found.done] == [
        "delete trait CUSTOM_FAST, unless others use it"
    ]
    assert "CUSTOM_FAST" not in double.traits
    assert service.record.published_names().in_use_at == {}


def test_a_name_that_others_go_on_using_costs_one_write_in_a_while(
    double, service, clock
):
    service.sync(ONE)
    double.providers[NODE].traits.add("CUSTOM_FAST")
    writes = []
    for _ in range(6):
        writes.append(service.sync(capacity(1, traits=())).writes)
        clock.pass_by(KEPT_SECONDS / 2)
    # The first sync also removes the trait from the provider.
    assert writes == [2, 0, 1, 0, 1, 0]


def test_a_clock_that_is_put_back_keeps_no_name(double, service, clock):
    service.sync(ONE)
    double.providers[NODE].traits.add("CUSTOM_FAST")
    service.sync(capacity(1, traits=()))
    double.providers[NODE].traits.clear()
    clock.pass_by(-10.0 * KEPT_SECONDS)
    service.sync(capacity(1, traits=()))
    assert "CUSTOM_FAST" not in double.traits


def test_a_name_that_comes_and_goes_is_made_each_time_it_comes(double, service):
    service.sync(ONE)
    for _ in range(2):
        assert service.sync(capacity(1, traits=())).writes == 2
        assert "CUSTOM_FAST" not in double.traits
        # One write creates the trait, one sets the provider's traits.
        assert service.sync(ONE).writes == 2
        assert double.providers[ONE.uuid].traits == {"CUSTOM_FAST"}


def test_a_standard_trait_is_asked_for_again_in_a_while(double, service, clock):
    young = capacity(1, traits=("HW_YOUNGER",))
    service.sync(young)
    double.traits.add("HW_YOUNGER")
    assert len(service.sync(young).refused) == 1
    clock.pass_by(KEPT_SECONDS)
    assert service.sync(young).refused == ()
    assert double.providers[young.uuid].traits == {"HW_YOUNGER"}


def test_what_is_published_is_known_to_the_writer_of_novas_tree(bench, double):
    manager = bench.manager
    manager.publisher = Publisher(double.config(), "node1")
    assert manager.publish().done
    assert manager.catalog.memory.names == manager.store.published_names()
    assert manager.store.published_names().created
