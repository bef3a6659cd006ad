# SPDX-License-Identifier: Apache-2.0

"""The real Placement contains the host's offers, before and after changes."""

from __future__ import annotations

import json
import uuid

import pytest

from os_acc import exception, service
from os_acc.attach import operator_actions
from os_acc.objects.pci import PciAddress
from os_acc.placement.changes import Remove
from tests.functional.openstack.placement_site import (
    FPGA,
    GPU,
    GPU_A,
    NAMED,
    NETWORK,
    NIC,
    REGIONS,
    Site,
)

#: Seconds, far beyond the time that a slow machine takes.
LONG = 120.0


def test_a_host_is_a_tree_of_three_levels(site: Site) -> None:
    site.published()
    tree = site.tree()
    names = {known.uuid: name for name, known in tree.items()}
    assert {name: names.get(known.parent) for name, known in tree.items()} == {
        site.name: None,
        "card_8086_0b2b_0000_3b_00_0": site.name,
        "8086_0b2c_0000_3b_00_1": "card_8086_0b2b_0000_3b_00_0",
        "8086_0b2c_0000_3b_00_2": "card_8086_0b2b_0000_3b_00_0",
        "card_8086_0b2b_0000_af_00_0": site.name,
        "8086_0b2c_0000_af_00_1": "card_8086_0b2b_0000_af_00_0",
        "8086_0b2c_0000_af_00_2": "card_8086_0b2b_0000_af_00_0",
        "8086_1592_0000_5e_00_0": site.name,
        "10de_2235_0000_17_00_0": site.name,
        "10de_2235_0000_b1_00_0": site.name,
    }
    assert site.units(site.provider(NIC).uuid) == {NETWORK: (4, 0)}
    assert site.units(site.provider(GPU_A).uuid) == {GPU: (1, 0)}
    assert site.units(site.provider(REGIONS[0]).uuid) == {FPGA: (1, 0)}
    card = tree["card_8086_0b2b_0000_3b_00_0"]
    assert (card.inventories, card.traits) == ({}, frozenset())


def test_all_of_it_is_what_the_providers_are_said_to_have(site: Site) -> None:
    site.published()
    offered = site.manager.providers()
    assert len(offered) == 7
    for each in offered:
        known = site.placement.known(each.uuid)
        assert known.name == each.name
        assert known.traits == each.device.traits
        (record,) = known.inventories.values()
        units = len(each.device.handles)
        assert record == {
            "total": units,
            "reserved": 0,
            "min_unit": 1,
            "max_unit": units,
            "step_size": 1,
            "allocation_ratio": 1.0,
        }


def test_initialize_ends_when_all_devices_are_enumerated_and_traits_published(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "nodes", service.Nodes())
    options = {"config": site.config(initialize_timeout=300.0), "root": site.root}
    made = service.initialize(wait_for_placement=True, **options)
    try:
        offered = made.providers()
        assert len(offered) == 7
        for each in offered:
            assert site.placement.known(each.uuid).traits == each.device.traits
        # A second call has nothing to write.
        assert service.initialize(wait_for_placement=True, **options) is made
        assert made.publish().writes == 0
    finally:
        assert made.retrier.stop(LONG)


def test_a_restart_reads_what_there_is_and_writes_nothing(site: Site) -> None:
    site.published()
    site.renew()
    again = site.published()
    assert (again.done, again.writes) == ((), 0)
    # The version, the node by its name, the tree; two for each of seven.
    assert again.reads == 3 + 2 * 7


def test_an_allocation_costs_two_reads_of_its_provider_and_no_write(
    site: Site,
) -> None:
    """Placement counts it in the provider's generation."""
    site.published()
    site.placement.allocate({site.provider(GPU_A).uuid: {GPU: 1}})
    for reads in (3, 1):
        again = site.published()
        assert (again.done, again.reads, again.writes) == ((), reads, 0)


# -- capacity ------------------------------------------------------------------


def test_what_cannot_be_given_back_is_reserved_until_it_is(site: Site) -> None:
    nic = site.provider(NIC).uuid
    entry, _other = site.plug(1, NIC, amount=2)
    site.kernel.fail(entry["pci_id"], "unbind", times=None)
    with pytest.raises(exception.DevicesUnreleased):
        site.unplug(1)
    site.published()
    assert site.units(nic) == {NETWORK: (4, 1)}
    site.kernel.lift()
    operator_actions.release_device(
        site.manager, PciAddress.parse(entry["pci_id"]), None
    )
    assert site.published().writes == 1
    assert site.units(nic) == {NETWORK: (4, 0)}


# -- devices that are no longer offered -----------------------------------------


def without(*gone: str) -> list[str]:
    """Return the specification without some buses."""
    return [each for each in NAMED if not any(bus in each for bus in gone)]


def test_what_is_not_offered_is_deleted_and_its_card_with_it(site: Site) -> None:
    site.published()
    site.renew(device_spec=without(":3b:", ":17:"))
    done = site.published()
    assert [type(each) for each in done.done] == [Remove] * 4
    assert sorted(site.tree()) == sorted(
        [
            site.name,
            "card_8086_0b2b_0000_af_00_0",
            "8086_0b2c_0000_af_00_1",
            "8086_0b2c_0000_af_00_2",
            "8086_1592_0000_5e_00_0",
            "10de_2235_0000_b1_00_0",
        ]
    )
    assert site.published().writes == 0


def test_what_is_allocated_stays_all_reserved_until_it_is_free(site: Site) -> None:
    site.published()
    nic = site.provider(NIC).uuid
    consumer = site.placement.allocate({nic: {NETWORK: 2}})
    site.renew(device_spec=without(":5e:"))
    for writes in (1, 0):
        assert site.published().writes == writes
        assert site.units(nic) == {NETWORK: (4, 4)}
    site.placement.free(consumer)
    (step,) = site.published().done
    assert isinstance(step, Remove)
    assert not site.placement.has(f"/resource_providers/{nic}")


def test_what_comes_back_is_offered_again(site: Site) -> None:
    site.published()
    nic = site.provider(NIC).uuid
    site.placement.allocate({nic: {NETWORK: 1}})
    site.renew(device_spec=without(":5e:"))
    site.published()
    site.renew(device_spec=NAMED)
    site.published()
    assert site.units(nic) == {NETWORK: (4, 0)}


# -- classes ---------------------------------------------------------------------


def of_class(name: str, *, traits: str = "") -> list[str]:
    """Return the specification of a card's VFs alone, with a class of their own."""
    claim = {"address": "0000:5e:*.*", "num_vfs": 4, "resource_class": name}
    return [json.dumps(claim | ({"traits": traits} if traits else {}))]


@pytest.fixture
def unique() -> str:
    """Return a part of a name that no other test uses."""
    return uuid.uuid4().hex.upper()


def test_a_class_of_ours_that_nobody_uses_any_more_is_deleted(
    site: Site, unique: str
) -> None:
    first, second = f"CUSTOM_A_{unique}", f"CUSTOM_B_{unique}"
    site.renew(device_spec=of_class(first))
    nic = site.provider(NIC).uuid
    site.published()
    assert site.units(nic) == {first: (4, 0)}
    site.renew(device_spec=of_class(second))
    site.published()
    assert site.units(nic) == {second: (4, 0)}
    assert not site.placement.has(f"/resource_classes/{first}")
    assert site.published().writes == 0


def test_a_class_of_which_something_is_allocated_stays_reserved(
    site: Site, unique: str
) -> None:
    first, second = f"CUSTOM_A_{unique}", f"CUSTOM_B_{unique}"
    site.renew(device_spec=of_class(first))
    nic = site.provider(NIC).uuid
    site.published()
    consumer = site.placement.allocate({nic: {first: 1}})
    site.renew(device_spec=of_class(second))
    for writes in (2, 0):
        # The new class has to be created.
        assert site.published().writes == writes
        assert site.units(nic) == {first: (4, 4), second: (4, 0)}
    site.placement.free(consumer)
    site.published()
    assert site.units(nic) == {second: (4, 0)}
    assert not site.placement.has(f"/resource_classes/{first}")


def test_a_class_that_others_have_made_or_use_is_not_deleted(
    site: Site, unique: str
) -> None:
    theirs, shared = f"CUSTOM_A_{unique}", f"CUSTOM_B_{unique}"
    site.placement.make(f"other-{unique}", None, {theirs: 1})
    site.renew(device_spec=of_class(shared))
    site.published()
    site.placement.make(f"another-{unique}", None, {shared: 1})
    site.renew(device_spec=of_class(theirs))
    site.published()
    site.renew(device_spec=without(":5e:"))
    site.published()
    for name in (theirs, shared):
        assert site.placement.has(f"/resource_classes/{name}")
    assert site.published().writes == 0


# -- traits --------------------------------------------------------------------


def test_a_trait_of_ours_that_nobody_uses_any_more_is_deleted(
    site: Site, unique: str
) -> None:
    fast, slow = f"CUSTOM_FAST_{unique}", f"CUSTOM_SLOW_{unique}"
    site.renew(device_spec=of_class(NETWORK, traits=f"{fast},{slow}"))
    site.published()
    site.placement.make(f"other-{unique}", traits=(slow,))
    # After a restart, os_acc's traits are on record.
    site.renew(device_spec=of_class(NETWORK))
    site.published()
    assert not {fast, slow} & site.known(NIC).traits
    assert not site.placement.has(f"/traits/{fast}")
    assert site.placement.has(f"/traits/{slow}")
    assert site.published().writes == 0


def test_traits_that_operators_have_added_stay(site: Site, unique: str) -> None:
    fast, gold = f"CUSTOM_FAST_{unique}", f"CUSTOM_GOLD_{unique}"
    site.renew(device_spec=of_class(NETWORK, traits=fast))
    site.published()
    nic = site.provider(NIC).uuid
    mine = site.known(NIC).traits
    site.placement.set_traits(nic, gold, "HW_NIC_SRIOV", *mine)
    assert site.published().writes == 0
    site.renew(device_spec=of_class(NETWORK))
    site.published()
    assert site.known(NIC).traits == mine - {fast} | {gold, "HW_NIC_SRIOV"}


def test_a_provider_with_a_trait_of_an_operators_is_not_deleted(
    site: Site, unique: str
) -> None:
    site.published()
    nic = site.provider(NIC).uuid
    site.placement.set_traits(nic, f"CUSTOM_GOLD_{unique}", *site.known(NIC).traits)
    site.renew(device_spec=without(":5e:"))
    site.published()
    assert site.units(nic) == {NETWORK: (4, 4)}
    assert site.published().writes == 0


def test_a_provider_in_an_aggregate_of_an_operators_is_not_deleted(
    site: Site, unique: str
) -> None:
    site.published()
    nic, aggregate = site.provider(NIC).uuid, str(uuid.uuid4())
    site.placement.set_aggregates(nic, aggregate)
    site.renew(device_spec=without(":5e:"))
    site.published()
    assert site.units(nic) == {NETWORK: (4, 4)}
    assert site.published().writes == 0
    site.placement.set_aggregates(nic)
    site.published()
    assert not site.placement.has(f"/resource_providers/{nic}")


def test_a_region_that_is_leased_is_not_programmable(site: Site) -> None:
    site.published()
    assert "CUSTOM_PROGRAMMABLE" in site.known(REGIONS[0]).traits
    site.plug(1, REGIONS[0])
    done = site.published()
    assert len(done.done) == done.writes == 1
    assert "CUSTOM_PROGRAMMABLE" not in site.known(REGIONS[0]).traits
    assert "CUSTOM_PROGRAMMABLE" in site.known(REGIONS[1]).traits
    site.unplug(1)
    site.published()
    assert "CUSTOM_PROGRAMMABLE" in site.known(REGIONS[0]).traits
