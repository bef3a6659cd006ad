# SPDX-License-Identifier: Apache-2.0

"""A synchronization leaves other services' data in Placement unchanged."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable
from concurrent import futures
from typing import Any

import pytest

from os_acc import exception
from os_acc.placement import sync
from os_acc.placement.changes import Move
from os_acc.placement.client import Client, ServerFailed
from tests.expected_errors import has
from tests.functional.openstack.placement import Refused
from tests.functional.openstack.placement_site import (
    GPU,
    GPU_A,
    NAMED,
    NETWORK,
    NIC,
    REGIONS,
    Site,
    told,
)

# -- beside os_acc's providers --------------------------------------------------


def test_what_others_have_is_the_same_byte_for_byte(site: Site) -> None:
    make = site.placement.make
    nova = make(
        f"{site.name}_pci_0000_81_00_0",
        site.node,
        {"CUSTOM_PCI_8086_1572": 1},
        ("OWNER_NOVA", "CUSTOM_RACK_7"),
    )
    network = make(f"{site.name}:NIC Switch agent", site.node)
    port = make(f"{site.name}:eth0", network, {"NET_BW_EGR_KILOBIT_PER_SEC": 1000})
    # A provider with os_acc's form of name, but not os_acc's.
    lookalike = make(f"{site.name}_accel_of_somebody_else", site.node, {GPU: 2})
    site.placement.allocate({site.node: {"VCPU": 2}, nova: {"CUSTOM_PCI_8086_1572": 1}})
    theirs = (site.node, nova, network, port, lookalike)

    def texts() -> list[str]:
        return [site.placement.known(each).text for each in theirs]

    before = texts()
    site.published()
    site.plug(1, REGIONS[0])
    site.published()
    site.unplug(1)
    site.kernel.hot_unplug(NIC)
    site.published()
    site.renew(device_spec=NAMED[:1])
    site.published()
    assert texts() == before


def test_a_child_of_somebody_elses_below_ours_keeps_both(site: Site) -> None:
    site.published()
    nic = site.provider(NIC).uuid
    child = site.placement.make(f"{site.name}-child", nic, {"CUSTOM_CHILD": 1})
    before = site.placement.known(child).text
    site.renew(device_spec=NAMED[:1])
    site.published()
    assert site.units(nic) == {NETWORK: (4, 4)}
    assert site.published().writes == 0
    assert site.placement.known(child).text == before
    site.placement.remove(child)
    site.published()
    assert not site.placement.has(f"/resource_providers/{nic}")


def test_a_class_that_others_have_added_to_ours_stays(site: Site) -> None:
    """Nova adds it if its operator has set it in a provider.yaml."""
    site.published()
    nic = site.provider(NIC).uuid
    site.placement.set_inventories(nic, {NETWORK: 4, "CUSTOM_MORE": 7})
    site.published()
    assert site.units(nic) == {NETWORK: (4, 0), "CUSTOM_MORE": (7, 0)}
    assert site.published().writes == 0


# -- in the place of os_acc's providers -----------------------------------------


@pytest.mark.parametrize("where", ["in the tree", "elsewhere"])
def test_a_name_that_somebody_else_has_costs_that_provider_alone(
    site: Site, where: str
) -> None:
    gpu = site.provider(GPU_A)
    other = site.placement.make(gpu.name, site.node if where == "in the tree" else None)
    done = site.sync()
    assert told(done.refused) == {
        f"create {gpu.name}": exception.RefusalReason.NAME_TAKEN
    }
    assert len(site.tree()) == 1 + 8 + (where == "in the tree")
    again = site.sync()
    assert (again.done, again.writes) == ((), 0)
    assert told(again.refused) == told(done.refused)
    site.placement.remove(other)
    site.published()
    assert site.units(gpu.uuid) == {GPU: (1, 0)}


def test_a_provider_of_ours_in_another_tree_is_left_there(site: Site) -> None:
    """The compute node was created anew, and the old one could not be deleted."""
    gpu = site.provider(GPU_A)
    elsewhere = site.placement.make(f"{site.name}-before")
    site.placement.make(f"{gpu.name}-renamed", elsewhere, rp=gpu.uuid)
    before = site.placement.known(gpu.uuid).text
    done = site.sync()
    assert told(done.refused) == {
        f"create {gpu.name}": exception.RefusalReason.NAME_TAKEN
    }
    assert site.placement.known(gpu.uuid).text == before


def test_a_card_that_cannot_be_made_leaves_its_regions_to_the_node(site: Site) -> None:
    card = site.provider(REGIONS[0]).card
    assert card is not None
    site.placement.make(card.name)
    done = site.sync()
    assert told(done.refused) == {
        f"create {card.name}": exception.RefusalReason.NAME_TAKEN
    }
    assert site.known(REGIONS[0]).parent == site.node
    assert site.known(REGIONS[2]).parent != site.node


# -- the compute node --------------------------------------------------------------


def test_a_compute_node_is_never_made(site: Site) -> None:
    name = f"node-{uuid.uuid4()}"
    site.renew(node_name=name)
    site.publisher = sync.Publisher(site.config(), name)
    with pytest.raises(
        exception.NotFound, check=has(kind=exception.ObjectKind.NODE), match=name
    ) as caught:
        site.sync()
    assert caught.value.retryable
    found = site.placement.get(f"/resource_providers?name={name}")
    assert found["resource_providers"] == []


@pytest.mark.parametrize("by", ["name", "uuid"])
def test_a_compute_node_of_another_name_is_named_by_an_option(
    site: Site, by: str
) -> None:
    name = f"hypervisor-{uuid.uuid4()}"
    root = site.placement.make(name)
    by_option = site.new_publisher(node_provider=name if by == "name" else root)
    site.sync(by_option)
    assert len(site.placement.tree(root)) == 10


def test_a_compute_node_that_was_made_anew_is_found(site: Site) -> None:
    site.published()
    known = site.placement.tree(site.node).values()
    regions = [each.uuid for each in known if each.parent not in (site.node, None)]
    others = [each.uuid for each in known if each.parent == site.node]
    site.placement.remove(*regions, *others, site.node)
    with pytest.raises(exception.NotFound, check=has(kind=exception.ObjectKind.NODE)):
        site.sync()
    site.node = site.placement.make(site.name)
    site.published()
    assert len(site.tree()) == 10


# -- from an older os_acc ----------------------------------------------------------


def test_a_region_below_the_node_is_put_below_its_card(site: Site) -> None:
    region = site.provider(REGIONS[0])
    resource_class = region.device.resource_class
    site.placement.make(region.name, site.node, {resource_class: 1}, rp=region.uuid)
    site.placement.allocate({region.uuid: {resource_class: 1}})
    done = site.published()
    assert region.card is not None
    assert [each.name for each in done.done if isinstance(each, Move)] == [region.name]
    assert site.known(REGIONS[0]).parent == region.card.uuid


def test_a_provider_stays_where_an_operator_has_put_it(site: Site) -> None:
    numa = site.placement.make(f"{site.name}-numa0", site.node)
    region = site.provider(REGIONS[0])
    site.placement.make(region.name, numa, rp=region.uuid)
    site.published()
    assert site.known(REGIONS[0]).parent == numa


# -- concurrent changes ---------------------------------------------------------


class Meddling(Client):
    """Runs a callback just before a provider's traits are set.

    :ivar meddle: called with the provider's uuid.
    """

    meddle: Callable[[str], None]

    def set_traits(self, provider: str, *more: Any) -> int:
        self.meddle(provider)
        return super().set_traits(provider, *more)


@pytest.fixture
def meddling(site: Site) -> Meddling:
    made = Meddling(site.config())
    site.publisher = sync.Publisher(site.config(), site.name, made)
    return made


def test_what_changes_while_it_is_changed_is_read_anew(
    site: Site, meddling: Meddling
) -> None:
    gpu, gold = site.provider(GPU_A).uuid, f"CUSTOM_{uuid.uuid4().hex.upper()}"
    before: list[str] = []

    def add_a_trait(provider: str) -> None:
        if provider == gpu and not before:
            before.append(provider)
            site.placement.set_traits(provider, gold)

    meddling.meddle = add_a_trait
    site.published()
    assert before
    offered = site.provider(GPU_A).device.traits
    assert site.known(GPU_A).traits == offered | {gold}
    assert site.units(gpu) == {GPU: (1, 0)}


def test_a_trait_that_is_deleted_meanwhile_is_made_again(
    site: Site, meddling: Meddling
) -> None:
    name = f"CUSTOM_{uuid.uuid4().hex.upper()}"
    spec = f'{{"address": "0000:17:00.*", "traits": "{name}"}}'
    site.restart(device_spec=[spec])
    deleted: list[str] = []

    def delete(provider: str) -> None:
        if not deleted:
            deleted.append(name)
            site.placement.http.delete(f"/traits/{name}")

    meddling.meddle = delete
    site.published()
    assert name in site.known(GPU_A).traits


def test_what_is_allocated_while_it_is_deleted_stays(site: Site) -> None:
    class Allocating(Client):
        def delete(self, provider: str, deadline: float) -> None:
            with contextlib.suppress(Refused):
                site.placement.allocate({provider: {NETWORK: 1}})
            super().delete(provider, deadline)

    nic = site.provider(NIC).uuid
    site.published()
    site.restart(device_spec=NAMED[:2])
    config = site.config(device_spec=NAMED[:2])
    site.publisher = sync.Publisher(config, site.name, Allocating(config))
    site.published()
    assert site.units(nic) == {NETWORK: (4, 4)}


def test_several_that_publish_at_once_come_to_the_same(site: Site) -> None:
    site.manager.discover()
    publishers = [site.new_publisher() for _ in range(3)]
    together = threading.Barrier(len(publishers))

    def publish(by: sync.Publisher) -> sync.SyncResult:
        together.wait()
        return site.sync(by)

    with futures.ThreadPoolExecutor(len(publishers)) as pool:
        found = list(pool.map(publish, publishers))
    # SQLite, and with it Placement, may fail on two concurrent writes.
    refused = {type(each.error) for by in found for each in by.refused}
    assert refused <= {ServerFailed}
    site.published()
    assert len(site.tree()) == 10
    for offered in site.manager.providers():
        known = site.placement.known(offered.uuid)
        assert known.traits == offered.device.traits
        assert list(known.inventories) == [offered.device.resource_class]
