# SPDX-License-Identifier: Apache-2.0

"""After the loss of the record, no guest starts without its allocated devices."""

from __future__ import annotations

import json

import pytest

from os_acc import exception
from os_acc.placement.sync import Publisher
from os_acc.testing import instance, request
from tests.unit.placement.nova_side import Nova

GPU, AUDIO, NIC = "0000:17:00.0", "0000:17:00.1", "0000:3b:00.0"


class Tree:
    """Publishes a host's devices through Nova's provider tree."""

    def __init__(self, bench):
        self._bench, self._nova = bench, Nova()

    def tell(self):
        self._nova.cycle(self._bench.manager.update_provider_tree)

    def units(self, provider, name=None):
        return self._nova.units(provider.uuid)[name or provider.device.resource_class]

    def add(self, provider, name):
        tree = self._nova.known
        there = tree.data(provider.uuid).inventory
        record = there[provider.device.resource_class]
        tree.update_inventory(provider.uuid, {**there, name: record})


class Direct:
    """Publishes a host's devices in Placement directly."""

    def __init__(self, bench, double):
        self._bench, self._double = bench, double

    def tell(self):
        self._bench.manager.publisher = Publisher(self._double.config(), "node1")
        assert self._bench.manager.publish().refused == ()

    def units(self, provider, name=None):
        found = self._double.providers[provider.uuid]
        record = found.inventories[name or provider.device.resource_class]
        return record["total"], record["reserved"]

    def allocate(self, provider):
        found = self._double.providers[provider.uuid]
        found.allocated = {"guest": {provider.device.resource_class: 1}}

    def add(self, provider, name):
        self._double.classes.add(name)
        there = self._double.providers[provider.uuid].inventories
        there[name] = {**there[provider.device.resource_class]}


@pytest.fixture(params=["tree", "direct"])
def way(request, bench, double):
    return Tree(bench) if request.param == "tree" else Direct(bench, double)


@pytest.fixture
def lost(bench, way, tmp_path):
    """Lose the record while a guest has the GPU; return the GPU's provider."""
    gpu = bench.provider(GPU)
    bench.plug(1, GPU)
    way.tell()
    if isinstance(way, Direct):
        way.allocate(gpu)
    bench.restart(state_path=str(tmp_path / "elsewhere"))
    way.tell()
    return gpu


def refused(bench, *providers):
    """Assert that plugs of these providers for other guests are refused."""
    selected, specs = request(*providers)
    for number, each in enumerate((selected, {"allocations": selected["allocations"]})):
        with pytest.raises(exception.DeviceGone):
            bench.manager.plug(instance(2 + number), each, specs)
    assert bench.manager.attached(None) == {}


def test_what_is_not_offered_any_more_is_reserved(lost, way):
    assert way.units(lost) == (1, 1)


def test_who_was_promised_it_does_not_start_without(bench, lost):
    refused(bench, lost)


def test_nor_with_a_part_of_what_was_promised(bench, lost):
    refused(bench, bench.provider(NIC), lost)


def test_that_is_on_record_by_the_next_start(bench, lost, tmp_path):
    bench.manager.discover()
    bench.restart(state_path=str(tmp_path / "elsewhere"))
    refused(bench, lost)


def test_a_card_that_was_pulled_out_meanwhile_is_as_good_as_leased(
    bench, way, tmp_path
):
    gpu = bench.provider(GPU)
    way.tell()
    bench.let_go()
    for each in (AUDIO, GPU):
        bench.kernel.hot_unplug(each)
    bench.restart(state_path=str(tmp_path / "elsewhere"))
    way.tell()
    assert way.units(gpu) == (1, 1)
    refused(bench, gpu)


def test_all_of_its_classes_stay_and_are_reserved_cycle_after_cycle(
    bench, way, tmp_path
):
    """Units of either class may be allocated; Nova could not remove those."""
    gpu = bench.provider(GPU)
    way.tell()
    way.add(gpu, "CUSTOM_ACCELERATOR_AAA")
    bench.let_go()
    for each in (AUDIO, GPU):
        bench.kernel.hot_unplug(each)
    bench.restart(state_path=str(tmp_path / "elsewhere"))
    for _ in range(3):
        way.tell()
        assert way.units(gpu) == (1, 1)
        assert way.units(gpu, "CUSTOM_ACCELERATOR_AAA") == (1, 1)
        # The same holds once the record has the provider again.
        bench.manager.discover()


def test_a_class_that_a_device_had_before_is_not_offered_beside_the_new_one(
    bench, way, tmp_path
):
    gpu = bench.provider(GPU)
    way.tell()
    before = gpu.device.resource_class
    if isinstance(way, Direct):
        way.allocate(gpu)
    named = json.dumps({"address": "0000:17:00.*", "resource_class": "CUSTOM_MINE"})
    bench.restart(state_path=str(tmp_path / "elsewhere"), device_spec=[named])
    for _ in range(2):
        way.tell()
        assert way.units(gpu, "CUSTOM_MINE") == (1, 0)
        assert way.units(gpu, before) == (1, 1)
