# SPDX-License-Identifier: Apache-2.0

"""Nova passes the results of ``update_provider_tree`` on to Placement.

Nova's own resource tracker calls a virt driver that calls os_acc, and its report
client writes the changes into Placement.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from os_acc.nova import initialization
from os_acc.testing import HostSpec, TestHost, hosts
from os_acc.testing.nova import FakeProviderTree
from tests.functional.nova import compute, nova_cases
from tests.functional.nova.compute import NODE, NODE_UUID

GPU, AUDIO, FPGA, NIC = "0000:17:00.0", "0000:17:00.1", "0000:3b:00.0", "0000:5e:00.0"
REGIONS = ("0000:3b:00.1", "0000:3b:00.2")
GRAPHICS, NETWORK = "CUSTOM_ACCELERATOR_GPU", "CUSTOM_ACCELERATOR_NIC"
OTHER = "CUSTOM_RENDERER"

NAMED = [
    '{"address": "0000:3b:*.*", "num_vfs": 2}',
    '{"address": "0000:5e:*.*", "num_vfs": 4}',
    '{"address": "0000:17:00.*"}',
]


def otherwise(resource_class: str) -> list[str]:
    """Return the same specification, with another resource class for the GPU."""
    named = {"address": "0000:17:00.*", "resource_class": resource_class}
    return [*NAMED[:2], json.dumps(named)]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TestHost]:
    """Yield an FPGA card with two regions, a card with four VFs, and a GPU."""
    spec = HostSpec(
        (
            *hosts.gpu("0000:17", 0),
            hosts.dfl("0000:3b", 0, functions=(hosts.DFL_FUNCTION,) * 2, vfs=2),
            hosts.nic("0000:5e", 0, name="ens1f0"),
        )
    )
    with TestHost(tmp_path, spec, device_spec=NAMED, node_name=NODE) as bench:
        yield bench


@pytest.fixture
def nova(bench: TestHost, tmp_path: Path) -> Iterator[compute.Nova]:
    """Start nova-compute on that host."""
    configuration = tmp_path / "provider_config"
    configuration.mkdir()
    service = compute.Nova(
        lambda tree, name: bench.manager.update_provider_tree(tree, name),
        configuration,
    )
    with nova_cases.running(service) as found:
        yield found


def seen(bench: TestHost, nova: compute.Nova) -> None:
    """Scan the host in the service, and publish with Nova."""
    bench.manager.discover()
    nova.cycle()


# -- published devices -----------------------------------------------------------


@pytest.mark.parametrize("again", [compute.Nova.cycle, compute.Nova.start])
def test_the_same_again_writes_nothing(nova, again):
    before = nova.tree()
    again(nova)
    assert nova.tree() == before


def test_nova_s_tree_is_told_as_ours_that_is_for_tests(bench, nova):
    """The double in tests without Nova gives the same result."""
    double = FakeProviderTree()
    double.new_root(NODE, NODE_UUID)
    bench.manager.update_provider_tree(double, NODE)
    assert len(nova.tree()) == 1 + 1 + len(bench.manager.providers())
    for name, each in nova.tree().items():
        found = double.data(name)
        assert (each["uuid"], each["parent_provider_uuid"]) == (
            found.uuid,
            found.parent_uuid,
        )
        if name != NODE:
            assert nova.traits(found.uuid) == found.traits
            path = f"/resource_providers/{found.uuid}/inventories"
            assert nova.get(path)["inventories"] == found.inventory


# -- data of other services ------------------------------------------------------


def test_what_others_have_is_the_same_byte_for_byte(bench, nova):
    site = "30000000-9999-4999-8999-999999999999"
    pci = nova.make(
        f"{NODE}_0000:81:00.0",
        NODE_UUID,
        {"CUSTOM_PCI_8086_1572": 1},
        *("OWNER_NOVA", "CUSTOM_RACK_7"),
    )
    agent = nova.make(f"{NODE}:NIC Switch agent", NODE_UUID, {})
    port = nova.make(f"{NODE}:eth0", agent, {"NET_BW_EGR_KILOBIT_PER_SEC": 1000})
    # A provider with os_acc's form of name, but not os_acc's.
    lookalike = nova.make(f"{NODE}_accel_of_somebody_else", NODE_UUID, {GRAPHICS: 2})
    disk = nova.make(
        "shared", None, {"DISK_GB": 9}, "MISC_SHARES_VIA_AGGREGATE", aggregate=site
    )
    nova.allocate({NODE_UUID: {"VCPU": 1}, pci: {"CUSTOM_PCI_8086_1572": 1}})
    theirs = (NODE_UUID, pci, agent, port, lookalike, disk)

    def texts() -> list[str]:
        return [nova.text(each) for each in theirs]

    nova.start()
    before = texts()
    bench.plug(1, REGIONS[0])
    seen(bench, nova)
    bench.unplug(1)
    for address in (AUDIO, GPU):
        bench.kernel.hot_unplug(address)
    seen(bench, nova)
    bench.restart(device_spec=NAMED[:1])
    nova.start()
    seen(bench, nova)
    assert texts() == before


def test_a_trait_of_an_operator_s_on_ours_stays(bench, nova):
    gpu = bench.provider(GPU)
    nova.set_traits(gpu.uuid, *gpu.device.traits, "CUSTOM_GOLD")
    nova.start()
    nova.cycle()
    assert nova.traits(gpu.uuid) == gpu.device.traits | {"CUSTOM_GOLD"}


def test_a_provider_yaml_adds_a_class_to_one_of_ours(bench, nova):
    gpu = bench.provider(GPU)
    nova.configure({gpu.uuid: {"CUSTOM_MORE": 7}})
    for _ in range(2):
        nova.start()
        nova.cycle()
        assert nova.units(gpu.uuid) == {GRAPHICS: (1, 0), "CUSTOM_MORE": (7, 0)}


def test_a_provider_yaml_may_name_a_card(bench, nova):
    card = bench.provider(REGIONS[0]).card
    nova.configure({card.uuid: {"CUSTOM_MORE": 7}})
    # In the end os_acc does not offer the card.
    for named in (NAMED, NAMED[1:]):
        bench.restart(device_spec=named)
        for _ in range(2):
            nova.start()
            nova.cycle()
            assert nova.units(card.uuid) == {"CUSTOM_MORE": (7, 0)}


def test_a_provider_yaml_adds_a_class_while_os_acc_cannot_serve(bench, nova):
    gpu, card = bench.provider(GPU), bench.provider(REGIONS[0]).card
    nova.configure({gpu.uuid: {"CUSTOM_MORE": 7}, card.name: {"CUSTOM_SLOT": 1}})
    nova.start()
    node = initialization.DeferredNode(NODE, mock.Mock(), 1.0, bench.config())
    nova.update = lambda tree, name: node.update_provider_tree(tree, name, ())
    for _ in range(2):
        nova.start()
        nova.cycle()
        assert nova.units(gpu.uuid) == {GRAPHICS: (1, 1), "CUSTOM_MORE": (7, 0)}
        assert nova.units(card.uuid) == {"CUSTOM_SLOT": (1, 0)}


# -- allocations -----------------------------------------------------------------


@pytest.mark.parametrize("again", [compute.Nova.cycle, compute.Nova.start])
def test_a_class_of_which_something_is_allocated_stays(bench, nova, again):
    """Its guest is stopped, or not plugged yet: there is no lease."""
    gpu = bench.provider(GPU)
    nova.allocate({gpu.uuid: {GRAPHICS: 1}})
    bench.restart(device_spec=otherwise(OTHER))
    again(nova)
    assert nova.units(gpu.uuid) == {GRAPHICS: (1, 1), OTHER: (1, 0)}
    bench.restart(device_spec=NAMED)
    again(nova)
    assert nova.units(gpu.uuid) == {GRAPHICS: (1, 0), OTHER: (1, 1)}


def test_it_stays_when_the_device_is_not_named_any_more(bench, nova):
    gpu = bench.provider(GPU)
    nova.allocate({gpu.uuid: {GRAPHICS: 1}})
    bench.restart(device_spec=otherwise(OTHER))
    nova.start()
    nova.allocate({gpu.uuid: {OTHER: 1}})
    bench.restart(device_spec=NAMED[:2])
    nova.start()
    assert nova.units(gpu.uuid) == {GRAPHICS: (1, 1), OTHER: (1, 1)}


def test_it_stays_beside_what_is_leased(bench, nova):
    """One guest has a device by its old class, another one an allocation."""
    nic = bench.provider(NIC)
    bench.plug(1, NIC)
    nova.allocate({nic.uuid: {NETWORK: 2}})
    named = '{"address": "0000:5e:*.*", "num_vfs": 4, "resource_class": "SLICE"}'
    bench.restart(device_spec=[NAMED[0], named, NAMED[2]])
    nova.start()
    units = nova.units(nic.uuid)
    assert units["CUSTOM_SLICE"] == (3, 0)
    # The total of a class that is being removed is the leased amount.
    assert units[NETWORK] == (1, 0)
    bench.unplug(1)
    seen(bench, nova)
    assert nova.units(nic.uuid) == {NETWORK: (1, 1), "CUSTOM_SLICE": (4, 0)}


@pytest.mark.parametrize("address", [NIC, REGIONS[0]])
def test_a_provider_of_which_something_is_allocated_stays(bench, nova, address):
    offered = bench.provider(address)
    resource_class = offered.device.resource_class
    units = len(offered.device.handles)
    nova.allocate({offered.uuid: {resource_class: 1}})
    bench.restart(device_spec=NAMED[2:])
    nova.start()
    assert nova.units(offered.uuid) == {resource_class: (units, units)}
    bench.restart(device_spec=NAMED)
    nova.start()
    assert nova.units(offered.uuid) == {resource_class: (units, 0)}
