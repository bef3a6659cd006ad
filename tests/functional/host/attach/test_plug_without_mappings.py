# SPDX-License-Identifier: Apache-2.0

"""A plug works with allocations alone, which is what Nova compute has of a flavor."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from oslo_config import cfg

from os_acc import exception
from os_acc.placement.sync import Publisher
from os_acc.testing import HostSpec, TestHost, hosts, instance, uuid_of
from os_acc.testing.nova import FakeProviderTree
from tests.expected_errors import raises
from tests.unit.fpga import (
    CARD,
    CRYPTO,
    GZIP,
    OTHER_CARD,
    POWER_ON,
    function_trait,
    traits,
    upload,
)
from tests.unit.placement.placement_double import Double

FPGA, NODE = "CUSTOM_ACCELERATOR_FPGA", uuid_of(99)
TWO_GROUPS = {
    f"resources1:{FPGA}": "1",
    f"resources2:{FPGA}": "1",
    "group_policy": "isolate",
}
either_card = pytest.mark.parametrize("card", [CARD, OTHER_CARD])


def allocations(bench: TestHost) -> dict[str, Any]:
    """Return allocations of one of each card and of the node's own resources."""
    cards = [bench.provider(address).uuid for address in (CARD, OTHER_CARD)]
    taken = {uuid: {"resources": {FPGA: 1}} for uuid in cards}
    return {"allocations": {NODE: {"resources": {"VCPU": 2}}, **taken}}


def mapped(bench: TestHost, first: str) -> dict[str, Any]:
    """Return the same allocations, with this card mapped to group 1."""
    (other,) = {CARD, OTHER_CARD} - {first}
    mappings = {
        "": [NODE],
        "1": [bench.provider(first).uuid],
        "2": [bench.provider(other).uuid],
    }
    return allocations(bench) | {"mappings": mappings}


def card_of(entries: list[dict[str, Any]], group: str) -> str:
    (address,) = [each["pci_id"] for each in entries if each["request_group"] == group]
    return address


@pytest.fixture
def differing(make_fpgas, card) -> TestHost:
    """Build a host on which this card holds another function than the other one."""
    holds = {CARD: POWER_ON, OTHER_CARD: POWER_ON} | {card: GZIP}
    buses = [address.removesuffix(":00.0") for address in holds]
    functions = zip(buses, holds.values(), strict=True)
    return make_fpgas(
        HostSpec(tuple(hosts.dfl(b, functions=(f,)) for b, f in functions))
    )


@either_card
def test_the_group_gets_the_region_with_its_function(differing, card):
    specs = TWO_GROUPS | {f"trait1:{function_trait(GZIP)}": "required"}
    entries = differing.manager.plug(instance(1), allocations(differing), specs)
    assert card_of(entries, "1") == card


@either_card
def test_what_was_assigned_stays_though_a_region_holds_something_else(differing, card):
    (other,) = {CARD, OTHER_CARD} - {card}
    upload(differing, "crypto", CRYPTO)
    specs = TWO_GROUPS | {
        f"trait1:{function_trait(POWER_ON)}": "forbidden",
        "accel2:function_id": CRYPTO,
    }
    plain = allocations(differing)
    assert function_trait(POWER_ON) in traits(differing, other)
    entries = differing.manager.plug(instance(1), plain, specs)
    assert card_of(entries, "1") == card
    # By traits alone, either card would now match group 1.
    assert function_trait(POWER_ON) not in traits(differing, other)
    again = [(plain, specs), (mapped(differing, card), specs), (None, None)]
    for selected, wanted in again:
        assert differing.manager.plug(instance(1), selected, wanted) == entries
    service = differing.restart()
    for selected, wanted in again:
        assert service.plug(instance(1), selected, wanted) == entries
    assert differing.programmings() == ["done"]


@either_card
def test_what_a_guest_has_already_outlives_mappings_that_come_later(fpgas, card):
    entries = fpgas.manager.plug(instance(1), allocations(fpgas), TWO_GROUPS)
    again = fpgas.manager.plug(instance(1), mapped(fpgas, card), TWO_GROUPS)
    assert again == entries


@either_card
def test_what_mappings_have_said_stands_without_them(fpgas, card):
    entries = fpgas.manager.plug(instance(1), mapped(fpgas, card), TWO_GROUPS)
    assert card_of(entries, "1") == card
    assert fpgas.manager.plug(instance(1), allocations(fpgas), TWO_GROUPS) == entries
    (other,) = {CARD, OTHER_CARD} - {card}
    with raises(exception.ConflictReason.CONSUMER):
        fpgas.manager.plug(instance(1), mapped(fpgas, other), TWO_GROUPS)


def test_another_request_is_a_conflict_without_mappings_too(fpgas):
    fpgas.manager.plug(instance(1), allocations(fpgas), TWO_GROUPS)
    specs = TWO_GROUPS | {"accel1:function_id": GZIP}
    with raises(exception.ConflictReason.CONSUMER, match=uuid_of(1)):
        fpgas.manager.plug(instance(1), allocations(fpgas), specs)
    one = {"resources:VCPU": "2", f"resources1:{FPGA}": "2"}
    with raises(exception.AllocationReason.NO_ASSIGNMENT, match="only 1"):
        fpgas.manager.plug(instance(1), allocations(fpgas), one)


@either_card
def test_the_trait_that_an_operator_has_set_tells_the_groups_apart(fpgas, card):
    tree = FakeProviderTree()
    tree.new_root("node1", NODE)
    fpgas.manager.providers()
    fpgas.manager.update_provider_tree(tree, "node1")
    tree.add_traits(fpgas.provider(card).uuid, "CUSTOM_RACK_7")
    fpgas.manager.update_provider_tree(tree, "node1")
    specs = TWO_GROUPS | {"trait1:CUSTOM_RACK_7": "required"}
    entries = fpgas.manager.plug(instance(1), allocations(fpgas), specs)
    assert card_of(entries, "1") == card


@pytest.fixture
def double() -> Iterator[Double]:
    """Run a Placement for a host without a provider tree."""
    made = Double()
    yield made
    made.end()


def published(bench: TestHost, double: Double) -> None:
    """Publish the host's cards, as on a site that publishes to Placement directly."""
    bench.manager.publisher = Publisher(double.config(), "node1")
    assert bench.manager.publish().refused == ()
    double.requests.clear()


IN_RACK_7 = TWO_GROUPS | {"trait1:CUSTOM_RACK_7": "required"}


@either_card
def test_placement_is_asked_for_the_trait_that_an_operator_has_set_there(
    fpgas, double, card
):
    published(fpgas, double)
    double.providers[fpgas.provider(card).uuid].traits.add("CUSTOM_RACK_7")
    entries = fpgas.manager.plug(instance(1), allocations(fpgas), IN_RACK_7)
    assert card_of(entries, "1") == card
    asked = [each for each in double.requests if each.endswith("/traits")]
    assert len(asked) == 2
    # The result is kept, and Placement is not read again.
    double.requests.clear()
    again = fpgas.manager.plug(instance(1), allocations(fpgas), IN_RACK_7)
    assert again == entries
    assert double.requests == []


def test_a_provider_that_placement_does_not_have_is_not_known_of(fpgas, double):
    fpgas.manager.publisher = Publisher(double.config(), "node1")
    assert fpgas.manager.plug(instance(1), allocations(fpgas), IN_RACK_7)


@pytest.mark.parametrize(
    ("specs", "with_mappings"),
    [
        (TWO_GROUPS, False),
        (TWO_GROUPS | {f"trait1:{function_trait(POWER_ON)}": "forbidden"}, False),
        (IN_RACK_7, True),
    ],
)
def test_placement_is_not_asked_what_decides_nothing(
    fpgas, double, specs, with_mappings
):
    published(fpgas, double)
    chosen = mapped(fpgas, CARD) if with_mappings else allocations(fpgas)
    fpgas.manager.plug(instance(1), chosen, specs)
    assert double.requests == []


def test_placement_is_not_asked_of_a_card_alone(fpgas, double):
    published(fpgas, double)
    card = fpgas.provider(CARD).uuid
    alone = {"allocations": {card: {"resources": {FPGA: 1}}}}
    specs = {f"resources1:{FPGA}": "1", "trait1:CUSTOM_RACK_7": "required"}
    assert fpgas.manager.plug(instance(1), alone, specs)
    assert double.requests == []


def test_what_placement_does_not_tell_is_not_guessed(fpgas, double):
    published(fpgas, double)
    before = fpgas.kernel.snapshot()
    double.trouble("GET", "/traits$", 500, times=99)
    with raises(exception.ServiceType.PLACEMENT) as caught:
        fpgas.manager.plug(instance(1), allocations(fpgas), IN_RACK_7)
    assert caught.value.retryable
    assert fpgas.manager.store.leases() == ()
    assert fpgas.kernel.snapshot() == before


def test_a_plug_waits_for_placement_no_longer_than_for_all_else(
    fpgas, silent_placement
):
    fpgas.restart(plug_timeout=5.0)
    fpgas.manager.publisher = Publisher(silent_placement, "node1")
    with raises(exception.ServiceType.PLACEMENT, match="in time"):
        fpgas.manager.plug(instance(1), allocations(fpgas), IN_RACK_7)


@pytest.fixture
def silent_placement() -> Iterator[cfg.ConfigOpts]:
    """Return the options of a Placement that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        made = Double()
        port = silent.getsockname()[1]
        yield made.config(endpoint_override=f"http://127.0.0.1:{port}")
        made.end()


def test_groups_on_one_provider_get_a_device_each(make_bench):
    card = "0000:3b:00.0"
    bench = make_bench(device_spec=['{"address": "0000:3b:*.*", "num_vfs": 4}'])
    provider = bench.provider(card)
    kind = provider.device.resource_class
    specs = {
        f"resources:{kind}": "1",
        f"resources1:{kind}": "1",
        f"resources2:{kind}": "2",
        "group_policy": "none",
    }
    selected = {"allocations": {provider.uuid: {"resources": {kind: 4}}}}
    entries = bench.manager.plug(instance(1), selected, specs)
    assert Counter(each["request_group"] for each in entries) == {"": 1, "1": 1, "2": 2}
    handles = {str(each.address) for each in provider.device.handles}
    assert {each["pci_id"] for each in entries} == handles
    assert len(handles) == 4
